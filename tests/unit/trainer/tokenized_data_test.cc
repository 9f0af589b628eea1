// Whole runs on JSONL: the token-weighted mean on every layout, the token cache, and lines that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/parity/reference.h"
#include "tests/unit/data/small_tokenizer.h"
#include "tests/unit/trainer/strategies_fixture.h"
#include "tokenizers/open_tokenizer.h"
#include "worker/collectives/single_communicator.h"
#include "worker/data/pieces.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_samples.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/rank_data.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class TokenizedDataTest : public StrategiesTest {
 protected:
  // Documents of 2 to 30 tokens with random numbers of targets, so that micro-batches differ in their targets.
  void WriteDocuments(const std::string& name, int count) {
    std::ofstream file(folder_ / name);
    uint64_t state = 11;
    const auto random = [&](uint64_t below) { return (state = state * 6364136223846793005u + 1) / 65536 % below; };
    for (int i = 0; i < count; ++i) {
      std::string ids, labels;
      for (uint64_t k = 0, length = 2 + random(29), masked = random(length); k < length; ++k) {
        const uint64_t id = (k * 5 + random(3)) % 64;
        absl::StrAppend(&ids, k == 0 ? "" : ", ", id);
        absl::StrAppend(&labels, k == 0 ? "" : ", ", k <= masked ? "-100" : absl::StrCat(id));
      }
      file << "{\"input_ids\": [" << ids << "], \"labels\": [" << labels << "]}\n";
    }
  }

  StartOrder JsonlOrder(const std::string& run, const Layout& layout, uint64_t steps,
                        const std::string& file = "data.jsonl") {
    StartOrder order = Order(run, layout, steps);
    order.config.data = {.text = {}, .jsonl = {folder_ / file}, .validation = 0.2};
    order.config.precision = {.param = "fp64", .reduce = "fp64", .output = "fp64", .master = "fp64", .state = "fp64"};
    return order;
  }

  // The folders of finished caches.
  std::vector<std::string> Caches() {
    std::vector<std::string> found;
    const fs::path root(folder_ / ".trainyard-tokens");
    for (const auto& entry : fs::directory_iterator(root)) {
      if (fs::exists(entry.path() / "index.json")) found.push_back(entry.path());
    }
    return found;
  }
};

struct PlainRun {
  std::vector<double> losses;
  std::vector<double> norms;
};

// The same job in the simplest form: all samples of a step at once, and one tensor per parameter.
PlainRun RunPlainLoop(const TrainConfig& config, const TrainingData& data) {
  PlainRun run;
  std::unique_ptr<Model> model = *MakeModel(config);
  reference::Parameters parameters, m, v;
  for (const NamedTensor& parameter : model->parameters()) {
    parameters[parameter.name] = parameter.tensor.detach().clone().requires_grad_(true);
    m[parameter.name] = v[parameter.name] = at::zeros_like(parameter.tensor);
  }
  UpdateOptions options{.clip_norm = config.optimizer.clip_norm};
  for (uint64_t step = 1; step <= config.steps; ++step) {
    const Batch batch = data.At((step - 1) * static_cast<uint64_t>(config.batch_global), config.batch_global);
    at::Tensor loss = reference::MeanLoss(batch.inputs, batch.targets, parameters, config.model);
    loss.backward();
    run.losses.push_back(loss.item<double>());
    run.norms.push_back(reference::Update(parameters, m, v, static_cast<int>(step), config.optimizer.lr, options));
  }
  return run;
}

TEST_F(TokenizedDataTest, UnequalNumbersOfTargets_GiveTheTokenWeightedMean_OnEveryLayout) {
  WriteDocuments("data.jsonl", 150);
  const auto alone = Run(JsonlOrder("alone", {"ddp", 1}, 5));
  ASSERT_THAT(Caches(), SizeIs(1));
  const TrainConfig config = JsonlOrder("alone", {"ddp", 1}, 5).config;
  auto samples = TokenSamples::Open(*TokenCacheFolder::Make(Caches()[0]), {0, 1},
                                    {.length = config.sequence_length(),
                                     .validation = 0.2,
                                     .evaluates = true,
                                     .vocabulary = config.model.vocabulary});
  ASSERT_TRUE(samples.ok()) << samples.status();
  const PlainRun plain = RunPlainLoop(config, TrainingData(**samples, config.seed));

  for (const Layout& layout : {Layout{"ddp", 1}, Layout{"ddp", 2}, Layout{"zero1", 3}, Layout{"zero2", 2},
                               Layout{"zero3", 3}, Layout{"fsdp", 2}, Layout{"fsdp", 3}, Layout{"hsdp", 4, 2}}) {
    const auto ranks = Run(JsonlOrder(absl::StrCat(layout.strategy, layout.ranks), layout, 5));
    const std::vector<StepRecord> steps = ranks->links[0]->steps();
    ASSERT_THAT(steps, SizeIs(5));
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(steps[i].loss, plain.losses[i], 1e-10)
          << layout.strategy << " " << layout.ranks << ", step " << i + 1;
      EXPECT_NEAR(steps[i].grad_norm, plain.norms[i], 1e-10) << layout.strategy << " " << layout.ranks;
    }
    ASSERT_THAT(ranks->links[0]->evals(), SizeIs(3));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(ranks->links[0]->evals()[i].loss, alone->links[0]->evals()[i].loss, 1e-10);
      EXPECT_EQ(ranks->links[0]->evals()[i].tokens, alone->links[0]->evals()[i].tokens);
    }
    EXPECT_THAT(ranks->logs[0].str(), HasSubstr("tokens: reused from "));
  }
}

TEST_F(TokenizedDataTest, LinesThatCannotBeUsed_AreListedForAllRanksTogether) {
  std::string line;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&line, i == 0 ? "" : ",", i % 64);
  // Several pieces, so that several ranks find problems.
  std::ofstream file(folder_ / "data.jsonl");
  const int64_t lines = 3 * kDataPieceBytes / static_cast<int64_t>(line.size());
  for (int64_t i = 1; i <= lines; ++i) {
    i % (lines / 14) == 0 ? file << "{\"input_ids\": [5, \"six\"]}\n" : file << "{\"input_ids\": [" << line << "]}\n";
  }
  file.close();

  const auto ranks = Run(JsonlOrder("run", {"ddp", 2}, 2), FileSystem::Real(), kExitRefused);

  std::string last;
  for (const auto& link : ranks->links) {
    ASSERT_THAT(link->FactsOf<RefusedFact>(), SizeIs(1));
    const std::string message = link->FactsOf<RefusedFact>()[0].message;
    EXPECT_TRUE(last.empty() || last == message) << "all ranks report the same";
    last = message;
    for (int64_t i = 1; i <= 10; ++i) {
      EXPECT_THAT(message, HasSubstr(absl::StrCat(folder_ / "data.jsonl", ": line ", i * (lines / 14),
                                                  ": field 'input_ids': element 1 is of type string")));
    }
    EXPECT_THAT(message, HasSubstr("and 4 more problems"));
  }
  EXPECT_THAT(Caches(), SizeIs(0));
}

TEST_F(TokenizedDataTest, AResumedRun_TakesTheSameSamples_AndRefusesOtherRules) {
  std::ofstream file(folder_ / "data.jsonl");
  for (int i = 0; i < 60; ++i) file << "{\"prompt\": \"" << i << " + 1 = \", \"response\": \"" << i + 1 << "\"}\n";
  file.close();
  const auto alone = Run(JsonlOrder("alone", {"fsdp", 2}, 4));
  Run(JsonlOrder("run", {"ddp", 3}, 2));
  StartOrder resumed = JsonlOrder("run", {"fsdp", 2}, 4);
  resumed.resume = true;

  StartOrder other = JsonlOrder("run", {"ddp", 1}, 4);
  other.resume = true;
  other.config.data.loss_on_prompts = true;
  const auto refused = Run(other, FileSystem::Real(), kExitRefused);
  EXPECT_THAT(refused->links[0]->FactsOf<RefusedFact>()[0].message,
              HasSubstr("the files are the same, but not the tokenizer or the rules"));

  const auto found = Run(resumed);
  ASSERT_THAT(found->links[0]->steps(), SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(found->links[0]->steps()[i].loss, alone->links[0]->steps()[2 + i].loss, 1e-10);
  }
}

// Regression: one file used the cache of two files with the same bytes, so that the job did not train on all its data.
TEST_F(TokenizedDataTest, TheSameBytesInOtherFiles_HaveAnotherCache) {
  WriteDocuments("a.jsonl", 60);
  WriteDocuments("b.jsonl", 90);
  std::ofstream(folder_ / "all.jsonl") << std::ifstream(folder_ / "a.jsonl").rdbuf()
                                       << std::ifstream(folder_ / "b.jsonl").rdbuf();
  StartOrder two = JsonlOrder("two", {"ddp", 1}, 1, "a.jsonl");
  two.config.data.jsonl.push_back(folder_ / "b.jsonl");
  const auto tokens = [](const std::string& log) {
    const size_t at = log.find("tokens in ");
    return log.substr(log.rfind(", ", at), at - log.rfind(", ", at));
  };

  const auto from_two = Run(two);
  const auto from_one = Run(JsonlOrder("one", {"ddp", 1}, 1, "all.jsonl"));

  EXPECT_THAT(Caches(), SizeIs(2));
  EXPECT_EQ(tokens(from_one->logs[0].str()), tokens(from_two->logs[0].str()));
}

TEST_F(TokenizedDataTest, AChunkThatTheDiskDamaged_IsMadeAgainByTheNextJob) {
  WriteDocuments("data.jsonl", 150);
  const auto first = Run(JsonlOrder("first", {"ddp", 2}, 2));
  const std::string path = TokenCacheFolder::Make(Caches()[0])->ChunkPath(0), good = *ReadFile(path);
  std::string damaged = good;
  damaged[damaged.size() - 100] ^= 1;
  std::ofstream(path, std::ios::binary) << damaged;

  const auto second = Run(JsonlOrder("second", {"ddp", 2}, 2));

  EXPECT_EQ(*ReadFile(path), good);
  EXPECT_THAT(second->logs[0].str(), HasSubstr("was damaged and is made again"));
  EXPECT_EQ(second->links[0]->steps()[1].loss, first->links[0]->steps()[1].loss);
}

// Regression: the tokens of the new content were kept under the key of the old content, which later jobs used.
TEST_F(TokenizedDataTest, AFileThatIsChangedWhileItIsRead_IsNamed_AndItsTokensAreNotKept) {
  WriteDocuments("data.jsonl", 150);
  const std::string path = folder_ / "data.jsonl", root = folder_ / ".trainyard-tokens";
  const StartOrder order = JsonlOrder("run", {"ddp", 1}, 2);
  const std::unique_ptr<Communicator> alone = NewSingleCommunicator();
  const auto change = [&] {
    std::fstream(path, std::ios::in | std::ios::out) << "{\"input_ids\": [9";  // of the same size
    return false;
  };
  for (const bool after_hashing : {true, false}) {
    SCOPED_TRACE(after_hashing);
    fs::remove_all(root);
    fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
    RankData data;
    std::ostringstream log;
    ASSERT_TRUE(OpenData(order, data, log).ok());
    if (!after_hashing) change();
    TokenizeOptions options;
    if (after_hashing) options.must_leave = change;

    const absl::Status status = TokenizeData(order, options, *alone, data, log);

    EXPECT_TRUE(absl::IsUnknown(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path + " was changed or replaced while this program read it"));
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      EXPECT_NE(entry.path().extension(), ".chunk");
      EXPECT_TRUE(after_hashing || entry.is_directory()) << entry.path() << ": the hash was recorded";
    }
  }
}

TEST_F(TokenizedDataTest, AChunkThatWasCutOff_IsMadeAgainByTheNextJob) {
  WriteDocuments("data.jsonl", 150);
  const auto first = Run(JsonlOrder("first", {"ddp", 2}, 2));
  const std::string path = TokenCacheFolder::Make(Caches()[0])->ChunkPath(0), good = *ReadFile(path);
  for (const size_t size : {good.size() / 2, size_t{5}}) {
    SCOPED_TRACE(absl::StrCat("cut off after ", size, " bytes"));
    fs::resize_file(path, size);

    const auto next = Run(JsonlOrder(absl::StrCat("after-", size), {"ddp", 2}, 2));

    EXPECT_EQ(*ReadFile(path), good);
    EXPECT_THAT(next->logs[0].str(), HasSubstr("was damaged and is made again"));
    EXPECT_EQ(next->links[0]->steps()[1].loss, first->links[0]->steps()[1].loss);
  }
}

TEST_F(TokenizedDataTest, AChunkThatWasCutOff_IsMadeAgainByARestart) {
  WriteDocuments("data.jsonl", 150);
  const auto first = Run(JsonlOrder("first", {"ddp", 2}, 2));
  const std::string path = TokenCacheFolder::Make(Caches()[0])->ChunkPath(0), good = *ReadFile(path);
  fs::resize_file(path, good.size() / 2);

  StartOrder order = JsonlOrder("restarted", {"ddp", 2}, 2);
  order.generation = 2;
  const auto restarted = Run(order);

  EXPECT_EQ(*ReadFile(path), good);
  ASSERT_THAT(restarted->links[0]->steps(), SizeIs(2));
  EXPECT_EQ(restarted->links[0]->steps()[1].loss, first->links[0]->steps()[1].loss);
}

TEST_F(TokenizedDataTest, ACacheGoesIntoTheRunFolder_IfNothingCanBeWrittenNextToIt) {
  WriteDocuments("data.jsonl", 150);
  std::ofstream(folder_ / ".trainyard-tokens") << "a file in the way, which also stops root";

  const auto ranks = Run(JsonlOrder("run", {"ddp", 2}, 2));

  EXPECT_THAT(ranks->links[0]->steps(), SizeIs(2));
  EXPECT_THAT(ranks->logs[0].str(), HasSubstr("tokens: written to " + folder_ / "run/.trainyard/tokens/"));
}

TEST_F(TokenizedDataTest, PromptsAndResponses_BecomeTheTokensOfTheTokenizersFile) {
  WriteSmallTokenizer(folder_.path());
  const std::unique_ptr<Tokenizer> tokenizer = *OpenTokenizer(folder_.path());
  std::ofstream file(folder_ / "data.jsonl");
  std::vector<int64_t> expected;
  std::vector<bool> expected_mask;
  for (int i = 0; i < 60; ++i) {
    const std::string prompt = absl::StrCat("the ", i, ":"), response = absl::StrCat(" the", i % 7);
    file << "{\"prompt\": \"" << prompt << "\", \"response\": \"" << response << "\"}\n";
    const std::vector<int32_t> before = *tokenizer->Encode(prompt, {.special_tokens = true});
    const std::vector<int32_t> after = *tokenizer->Encode(response, {.continues = true});
    expected.insert(expected.end(), before.begin(), before.end());
    expected_mask.insert(expected_mask.end(), before.size(), false);
    expected.insert(expected.end(), after.begin(), after.end());
    expected.push_back(SmallTokenizer::kEnd);
    expected_mask.insert(expected_mask.end(), after.size() + 1, true);
  }
  file.close();
  StartOrder order = JsonlOrder("run", {"fsdp", 2}, 2);
  order.config.data.tokenizer_path = folder_.path();

  const auto refused = Run(order, FileSystem::Real(), kExitRefused);
  EXPECT_THAT(
      refused->links[0]->FactsOf<RefusedFact>()[0].message,
      HasSubstr("train.model.vocabulary is 256, but the tokenizer has tokens up to 259; set it to at least 260"));
  // Regression: the advice was the same for a job with a config.json, which refuses another vocabulary.
  order.config.model_config = "{}";
  const auto of_folder = Run(order, FileSystem::Real(), kExitRefused);
  EXPECT_THAT(of_folder->links[0]->FactsOf<RefusedFact>()[0].message, HasSubstr("resize_token_embeddings(260)"));
  order.config.model_config = "";
  order.config.model.vocabulary = SmallTokenizer::kVocabulary;
  EXPECT_THAT(Run(order)->links[0]->steps(), SizeIs(2));

  ASSERT_THAT(Caches(), SizeIs(1));
  const std::string bytes = *ReadFile(TokenCacheFolder::Make(Caches()[0])->ChunkPath(0));
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  const TokenChunk chunk = *TokenChunk::Parse({reinterpret_cast<const char*>(aligned.data()), bytes.size()});
  std::vector<int64_t> tokens(static_cast<size_t>(chunk.num_tokens()));
  chunk.Read(0, absl::MakeSpan(tokens));
  std::vector<bool> mask;
  for (int64_t i = 0; i < chunk.num_tokens(); ++i) mask.push_back(chunk.HasLoss(i));
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(mask, expected_mask);
}

TEST_F(TokenizedDataTest, TextThroughATokenizer_TrainsAndEvaluates) {
  WriteSmallTokenizer(folder_.path());
  StartOrder order = Order("run", {"zero1", 2}, 4);
  order.config.data.tokenizer_path = folder_ / "tokenizer.json";
  order.config.model.vocabulary = SmallTokenizer::kVocabulary;

  const auto ranks = Run(order);

  EXPECT_THAT(ranks->links[0]->steps(), SizeIs(4));
  EXPECT_THAT(ranks->links[0]->evals(), SizeIs(2));
}

TEST_F(TokenizedDataTest, HostsWithOtherFiles_AreRefused) {
  WriteDocuments("data.jsonl", 100);
  WriteDocuments("other.jsonl", 101);
  const StartOrder order = JsonlOrder("run", {"ddp", 2}, 2);

  const auto all = RunEach(2, [&](int rank) {
    StartOrder own = order;
    if (rank == 1) own.config.data.jsonl = {folder_ / "other.jsonl"};
    return own;
  });

  ExpectCodes(*all, kExitRefused);
  for (const auto& link : all->links) {
    EXPECT_THAT(link->FactsOf<RefusedFact>()[0].message, HasSubstr("differs from that of rank 0 on rank 1"));
  }
}

// A document that is longer than a sample is cut, and may lose all of its targets. Without any target a step could not
// divide its gradients by the number of targets.
TEST_F(TokenizedDataTest, DataWithoutATarget_IsRefused) {
  std::ofstream file(folder_ / "data.jsonl");
  for (int i = 0; i < 20; ++i) {
    file << "{\"prompt\": \"" << std::string(100, 'p') << "\", \"response\": \"yes\"}\n";
  }
  file.close();

  const auto ranks = Run(JsonlOrder("run", {"ddp", 1}, 2), FileSystem::Real(), kExitRefused);

  EXPECT_THAT(ranks->links[0]->FactsOf<RefusedFact>()[0].message,
              HasSubstr("truncation has removed all targets of 20 documents"));
  EXPECT_THAT(ranks->logs[0].str(), Not(HasSubstr("step 1")));
}

}  // namespace
}  // namespace trainyard
