// Whole runs on several sources: held-out files and blends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/trainer/strategies_fixture.h"
#include "worker/data/byte_samples.h"
#include "worker/data/token_samples.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/rank_data.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class DataSourcesTest : public StrategiesTest {
 protected:
  // Lines of text that depend on `seed`, as plain text or as JSONL.
  std::string Write(const std::string& name, int lines, uint64_t seed, bool as_json = false) {
    std::ofstream file(folder_ / name);
    for (int i = 0; i < lines; ++i) {
      const std::string text = absl::StrCat("line ", (seed + static_cast<uint64_t>(i) * 7919) % 997, " of ", seed);
      as_json ? file << "{\"text\": \"" << text << "\"}\n" : file << text << "\n";
    }
    return folder_ / name;
  }

  StartOrder DoubleOrder(const std::string& run, const Layout& layout, uint64_t steps) {
    StartOrder order = Order(run, layout, steps);
    order.config.precision = {.param = "fp64", .reduce = "fp64", .output = "fp64", .master = "fp64", .state = "fp64"};
    return order;
  }

  static std::string RefusalOf(const Ranks& ranks) {
    const auto facts = ranks.links[0]->FactsOf<RefusedFact>();
    return facts.empty() ? "" : facts[0].message;
  }
};

TEST_F(DataSourcesTest, HeldOutFiles_AreEvaluatedOn_AndDoNotAffectTraining) {
  for (const bool as_json : {false, true}) {
    const std::string train = Write("train", 300, 1, as_json), held_out = Write("held-out", 40, 2, as_json);
    const auto with = [&](const std::string& run, const Layout& layout, const std::string& evaluated) {
      StartOrder order = DoubleOrder(absl::StrCat(run, as_json), layout, 2);
      order.config.data = {.text = {}, .held_out = {evaluated}, .validation = 0};
      (as_json ? order.config.data.jsonl : order.config.data.text) = std::vector<std::string>{train};
      order.config.evaluate_batches = 1000;
      return order;
    };
    const std::string other = Write("other", 90, 3, as_json);

    const auto alone = Run(with("alone", {"ddp", 1}, held_out));
    const auto three = Run(with("three", {"fsdp", 3}, held_out));
    const auto on_other = Run(with("on-other", {"ddp", 1}, other));

    ASSERT_THAT(alone->links[0]->evals(), SizeIs(1));
    const EvalRecord eval = alone->links[0]->evals()[0];
    // Each of the 40 lines has 12 bytes of JSON around its text.
    const double bytes = static_cast<double>(std::filesystem::file_size(held_out)) - (as_json ? 40.0 * 12 : 0);
    EXPECT_NEAR(static_cast<double>(eval.tokens), bytes, 50) << "all held-out samples are used";
    EXPECT_NEAR(three->links[0]->evals()[0].loss, eval.loss, 1e-10);
    EXPECT_EQ(three->links[0]->evals()[0].tokens, eval.tokens);
    EXPECT_NE(on_other->links[0]->evals()[0].tokens, eval.tokens);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(on_other->links[0]->steps()[i].loss, alone->links[0]->steps()[i].loss)
          << "held-out data does not affect training";
    }
    EXPECT_THAT(alone->logs[0].str(), HasSubstr("held out: 1 files"));
  }
}

TEST_F(DataSourcesTest, OtherHeldOutFiles_MayBeGivenWhenARunIsResumed) {
  const std::string train = Write("train", 300, 1);
  StartOrder order = DoubleOrder("run", {"ddp", 1}, 2);
  order.config.data = {.text = {train}, .held_out = {Write("first", 40, 2)}, .validation = 0};
  Run(order);

  order.resume = true;
  order.config.steps = 4;
  order.config.data.held_out = {Write("second", 50, 3)};

  EXPECT_THAT(Run(order)->links[0]->steps(), SizeIs(2));
}

TEST_F(DataSourcesTest, HeldOutFilesThatAreTrainedOn_OrTooShort_AreRefusedTogetherWithOtherProblems) {
  const std::string train = Write("train", 300, 1);
  StartOrder order = DoubleOrder("run", {"ddp", 1}, 2);
  order.config.data = {.text = {train}, .held_out = {train}, .validation = 0};
  EXPECT_THAT(RefusalOf(*Run(order, FileSystem::Real(), kExitRefused)),
              AllOf(HasSubstr("train.data.held_out: "), HasSubstr("/train is trained on too")));

  order.config.data.text = {folder_ / "missing"};
  order.config.data.held_out = {Write("short", 1, 1)};
  EXPECT_THAT(RefusalOf(*Run(order, FileSystem::Real(), kExitRefused)),
              AllOf(HasSubstr("missing: no such file"),
                    HasSubstr("train.data.held_out: the text is 12 bytes, shorter than one sample")));
}

TEST_F(DataSourcesTest, AFolderOfTextThatContainsTheRunFolder_IsRefusedForANewRun) {
  StartOrder order = DoubleOrder("run", {"ddp", 1}, 2);
  order.config.data = {.text = {folder_.path()}, .validation = 0};
  std::ostringstream log;
  RankData refused, opened;

  const absl::Status status = OpenData(order, refused, log);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the folder contains checkpoint.dir ("));

  order.restart_step = 1;
  EXPECT_TRUE(OpenData(order, opened, log).ok()) << "a run that resumes is compared with its checkpoint";
}

TEST_F(DataSourcesTest, DataThatAHostLacksAtARestart_FailTheRank_ButDoNotRefuseTheJob) {
  StartOrder order = DoubleOrder("run", {"ddp", 1}, 2);
  order.config.data = {.text = {folder_ / "not-mounted"}, .validation = 0};

  const auto first = Run(order, FileSystem::Real(), kExitRefused);
  order.generation = 2;
  order.restart_step = 40;
  const auto restarted = Run(order, FileSystem::Real(), kExitFailed);

  ASSERT_THAT(first->links[0]->FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_FALSE(first->links[0]->FactsOf<RefusedFact>()[0].checkpoint_missing);
  ASSERT_THAT(restarted->links[0]->FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_TRUE(restarted->links[0]->FactsOf<RefusedFact>()[0].checkpoint_missing);
  EXPECT_THAT(RefusalOf(*restarted), HasSubstr("not-mounted: no such file or folder"));
}

TEST_F(DataSourcesTest, CsvFilesWithOtherColumns_AreRefused_InABlendAndHeldOut) {
  const std::string first = folder_ / "first.csv", swapped = folder_ / "swapped.csv";
  std::ofstream(first) << "x,y,kind\n1,2,0\n3,4,1\n";
  std::ofstream(swapped) << "y,x,kind\n1,2,0\n3,4,1\n";
  StartOrder order = DoubleOrder("run", {"ddp", 1}, 2);
  order.config.model.context = 2;
  order.config.model.vocabulary = 2;
  const auto error_of = [&order](const TrainConfig::Data& config) {
    order.config.data = config;
    RankData data;
    std::ostringstream log;
    const absl::Status status = OpenData(order, data, log);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };

  const std::string blend = error_of({.text = {}, .csv = {first, swapped}, .weights = {1, 1}, .validation = 0});
  const std::string held_out = error_of({.text = {}, .csv = {first}, .held_out = {swapped}, .validation = 0});

  EXPECT_THAT(blend, AllOf(HasSubstr("train.data.csv:"), HasSubstr("swapped.csv:1: names other columns")));
  EXPECT_THAT(held_out, AllOf(HasSubstr("train.data.held_out:"), HasSubstr("swapped.csv:1: names other columns")));
}

TEST_F(DataSourcesTest, ABlend_TrainsOnTheSameSamples_OnOtherLayoutsAndAcrossAResume) {
  for (const bool as_json : {false, true}) {
    const std::vector<std::string> entries = {Write("a", 100, 1, as_json), Write("b", 300, 2, as_json),
                                              Write("c", 30, 3, as_json)};
    const auto blend = [&](const std::string& run, const Layout& layout, uint64_t steps) {
      StartOrder order = DoubleOrder(absl::StrCat(run, as_json), layout, steps);
      order.config.data = {.text = {}, .weights = {0.6, 0.3, 0.1}, .validation = 0.1};
      (as_json ? order.config.data.jsonl : order.config.data.text) = entries;
      return order;
    };

    const auto alone = Run(blend("alone", {"ddp", 1}, 6));
    const auto three = Run(blend("three", {"fsdp", 3}, 6));
    Run(blend("resumed", {"ddp", 2}, 2));
    StartOrder resume = blend("resumed", {"zero2", 2}, 6);
    resume.resume = true;
    const auto resumed = Run(resume);

    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(three->links[0]->steps()[i].loss, alone->links[0]->steps()[i].loss, 1e-10);
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(resumed->links[0]->steps()[i].loss, alone->links[0]->steps()[i + 2].loss, 1e-10);
    }
    EXPECT_NEAR(three->links[0]->evals()[2].loss, alone->links[0]->evals()[2].loss, 1e-10);
    EXPECT_THAT(alone->logs[0].str(), HasSubstr("/a has weight 0.6: "));

    StartOrder swapped = blend("resumed", {"ddp", 1}, 6);
    swapped.resume = true;
    std::swap((as_json ? swapped.config.data.jsonl : swapped.config.data.text)[0],
              (as_json ? swapped.config.data.jsonl : swapped.config.data.text)[1]);
    EXPECT_THAT(RefusalOf(*Run(swapped, FileSystem::Real(), kExitRefused)), HasSubstr("come in another order"));
  }
}

TEST_F(DataSourcesTest, AllSourcesWithoutASample_AreNamed_ExceptThoseOfWeightZero) {
  for (const bool as_json : {false, true}) {
    StartOrder order = Order(absl::StrCat("run", as_json), {"ddp", 2}, 1);
    order.config.data = {.text = {}, .weights = {1, 1, 1}, .validation = 0};
    const std::vector<std::string> entries = {Write("a", 1, 1, as_json), Write("b", 300, 2, as_json),
                                              Write("c", 1, 3, as_json)};
    (as_json ? order.config.data.jsonl : order.config.data.text) = entries;
    const std::string refusal = RefusalOf(*Run(order, FileSystem::Real(), kExitRefused));
    EXPECT_THAT(refusal, AllOf(HasSubstr("/a: the "), HasSubstr("/c: the "), Not(HasSubstr("/b: the "))));

    if (!as_json) continue;
    order.config.data.weights = {0, 1, 0};
    EXPECT_THAT(Run(order)->links[0]->steps(), SizeIs(1));
  }
}

TEST_F(DataSourcesTest, StagesOnTwoHosts_AreRefusedIfTheirBytesDiffer_AlsoWithAsManySamples) {
  const std::string text = Write("text", 300, 1), same = Write("same", 300, 1), other = folder_ / "other";
  std::string changed = *ReadFile(text);
  changed[100] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(other, changed).ok());
  const auto run = [&](const std::string& name, const std::string& of_rank_1, TrainerExit expected) {
    auto all = RunEach(2, [&](int rank) {
      StartOrder own = Order(name, {"ddp", 2}, 2);
      own.local_world_size = 1;
      own.config.parallel.stages = 2;
      own.config.evaluate_every = 0;
      own.config.data.text = {rank == 1 ? of_rank_1 : text};
      return own;
    });
    ExpectCodes(*all, expected);
    return all;
  };

  EXPECT_THAT(RefusalOf(*run("differing", other, kExitRefused)),
              HasSubstr("train.data.text: the content of the files differs from that of rank 0 on rank 1"));
  EXPECT_THAT(run("equal", same, kExitDone)->links[0]->FactsOf<RefusedFact>(), SizeIs(0));
}

TEST_F(DataSourcesTest, RanksWithOtherFiles_JoinWithAsManySamplesAsAllHave_IfThatIsAllowed) {
  const std::string few = Write("few", 200, 1, /*as_json=*/true), many = Write("many", 900, 2, /*as_json=*/true);
  const auto run = [&](const std::string& name, bool separate) {
    auto all = RunEach(3, [&](int rank) {
      StartOrder own = Order(name, {"ddp", 3}, 2);
      own.config.data = {.text = {},
                         .jsonl = {rank == 1 ? few : many},
                         .separate_documents = separate,
                         .validation = 0.1,
                         .joins_uneven = true};
      return own;
    });
    ExpectCodes(*all, separate ? kExitRefused : kExitDone);
    return all;
  };

  const auto joined = run("joined", false);
  EXPECT_THAT(joined->links[0]->steps(), SizeIs(2));
  EXPECT_THAT(joined->logs[0].str(), HasSubstr("train.data.uneven: all ranks use the smallest number"));
  EXPECT_THAT(RefusalOf(*run("separate", true)), HasSubstr("it does not work with prompts, labels or"));
}

// The sum of the losses of all documents of a batch, each computed alone.
double LossOfDocumentsAlone(const TrainConfig& config, const Batch& batch) {
  std::unique_ptr<Model> model = *MakeModel(config);
  NoUnitHooks hooks;
  double sum = 0;
  for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
    const int64_t* starts = batch.starts.const_data_ptr<int64_t>() + row * batch.starts.size(1);
    for (int64_t begin = 0, end = 0; begin < batch.inputs.size(1); begin = end) {
      while (end < batch.inputs.size(1) && starts[end] == begin) ++end;
      const auto of = [&](const at::Tensor& all) { return all.narrow(0, row, 1).narrow(1, begin, end - begin); };
      sum += model->LossSum(of(batch.inputs), of(batch.targets), hooks, std::nullopt).item<double>();
    }
  }
  return sum;
}

TEST_F(DataSourcesTest, SeparateDocuments_AreTrainedOnAsIfEachWereAlone_OnSeveralLayouts) {
  Write("data", 400, 1, /*as_json=*/true);
  const auto with = [&](const std::string& run, const Layout& layout, ModelFamily family) {
    StartOrder order = DoubleOrder(absl::StrCat(run, FamilyName(family)), layout, 4);
    order.config.data = {.text = {}, .jsonl = {folder_ / "data"}, .separate_documents = true, .validation = 0.1};
    order.config.model.context = 48;
    order.config.model.family = family;
    order.config.model = CompleteLlamaSizes(order.config.model);
    if (family == ModelFamily::kGpt2) order.config.model = {.layers = 2, .heads = 2, .width = 16, .context = 48};
    return order;
  };
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    const StartOrder order = with("alone", {"ddp", 1}, family);
    const auto alone = Run(order);
    const std::filesystem::path root(folder_ / ".trainyard-tokens");
    std::string cache;
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (std::filesystem::exists(entry.path() / "index.json")) cache = entry.path();
    }
    auto samples = TokenSamples::Open(
        *TokenCacheFolder::Make(cache), {0, 1},
        {.length = 48, .validation = 0.1, .vocabulary = order.config.model.vocabulary, .separate_documents = true});
    ASSERT_TRUE(samples.ok()) << samples.status();
    const Batch batch = TrainingData(**samples, order.config.seed).At(0, order.config.batch_global);
    const double expected = LossOfDocumentsAlone(order.config, batch) / static_cast<double>(batch.loss_tokens);
    EXPECT_LT(batch.loss_tokens, batch.inputs.numel()) << "no target leads into the next document";
    ASSERT_THAT(alone->links[0]->steps(), SizeIs(4));
    EXPECT_NEAR(alone->links[0]->steps()[0].loss, expected, 1e-10);

    StartOrder recomputed = with("recomputed", {"fsdp", 2}, family);
    recomputed.config.parallel.recompute = "blocks";
    for (const StartOrder& other :
         {with("fsdp", {"fsdp", 2}, family), with("zero3", {"zero3", 3}, family), recomputed}) {
      const auto ranks = Run(other);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(ranks->links[0]->steps()[i].loss, alone->links[0]->steps()[i].loss, 1e-10);
        EXPECT_NEAR(ranks->links[0]->steps()[i].grad_norm, alone->links[0]->steps()[i].grad_norm, 1e-10);
      }
      EXPECT_NEAR(ranks->links[0]->evals()[1].loss, alone->links[0]->evals()[1].loss, 1e-10);
    }
  }
}

TEST_F(DataSourcesTest, SeparateDocumentsOfBytes_AreFiles) {
  StartOrder order = Order("run", {"fsdp", 2}, 2);
  order.config.data = {.text = {Write("a", 30, 1), Write("b", 30, 2)}, .separate_documents = true, .validation = 0};
  auto corpus = *Corpus::Open({.paths = order.config.data.text, .length = 16});
  const ByteSamples samples(*corpus, 16, 0, /*separate_documents=*/true);
  const int64_t border = corpus->files()[0].num_bytes;
  const Batch batch = TrainingData(samples, 1).At(0, samples.num_samples(DataPart::kTraining));
  EXPECT_EQ(batch.loss_tokens, batch.inputs.numel() - 1) << "one target would lead into the second file";
  EXPECT_EQ(samples.LossTokens(DataPart::kTraining, (border - 1) / 16), 15);

  EXPECT_THAT(Run(order)->links[0]->steps(), SizeIs(2));
}

TEST_F(DataSourcesTest, FilesOfTokens_AreCheckedAndTrainedOn) {
  const auto write = [&](const std::string& name, size_t count, size_t bad) {
    std::vector<uint16_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = i == bad ? 700 : static_cast<uint16_t>(i * i % 61);
    std::ofstream(folder_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(2 * count));
    return folder_ / name;
  };
  const auto with = [&](const std::string& run, const Layout& layout) {
    StartOrder order = DoubleOrder(run, layout, 3);
    order.config.model.vocabulary = 64;
    order.config.data = {.text = {},
                         .tokens = {folder_ / "a.bin", folder_ / "b.bin"},
                         .weights = {2, 1},
                         .held_out = {folder_ / "test.bin"},
                         .validation = 0};
    return order;
  };
  write("a.bin", 3000, 2000);
  write("b.bin", 2000, 9999);
  write("test.bin", 500, 9999);
  EXPECT_THAT(RefusalOf(*Run(with("bad", {"ddp", 2}), FileSystem::Real(), kExitRefused)),
              HasSubstr("a.bin: token 700 at position 2000 is not from 0 to 63 (train.model.vocabulary is 64)"));

  write("a.bin", 3000, 9999);
  const auto alone = Run(with("alone", {"ddp", 1}));
  const auto three = Run(with("three", {"fsdp", 3}));

  ASSERT_THAT(alone->links[0]->steps(), SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(three->links[0]->steps()[i].loss, alone->links[0]->steps()[i].loss, 1e-10);
  }
  EXPECT_THAT(alone->links[0]->evals(), SizeIs(2));
  StartOrder separate = with("separate", {"ddp", 1});
  separate.config.data.separate_documents = true;
  EXPECT_THAT(RefusalOf(*Run(separate, FileSystem::Real(), kExitRefused)), HasSubstr("have no .idx file"));
}

}  // namespace
}  // namespace trainyard
