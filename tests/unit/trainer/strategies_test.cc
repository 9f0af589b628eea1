// Whole runs of several ranks, as threads, without a daemon: every strategy saves, resumes from the checkpoint of
// another, and survives a save that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "tests/unit/trainer/strategies_fixture.h"
#include "worker/diagnostics/event_log.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/rank_strategy.h"
#include "worker/trainer/run.h"
#include "worker/trainer/trainer.h"

namespace trainyard {
namespace {

using ::testing::SizeIs;

TEST_F(StrategiesTest, EachStrategy_ResumesFromTheCheckpointOfAnother) {
  const Layout layouts[] = {{"fsdp", 2},  {"ddp", 2},   {"hsdp", 4, 2}, {"zero2", 3},
                            {"zero1", 2}, {"zero3", 1}, {"fsdp", 4}};
  const uint64_t steps = 2 * std::size(layouts);
  const auto alone = Run(Order("alone", {"ddp", 1}, steps));
  const std::vector<StepRecord> expected = alone->links[0]->steps();
  ASSERT_THAT(expected, SizeIs(steps));

  uint64_t done = 0;
  for (const Layout& layout : layouts) {
    StartOrder order = Order("run", layout, done + 2);
    order.resume = done > 0;

    const auto ranks = Run(order);

    const std::vector<StepRecord> found = ranks->links[0]->steps();
    ASSERT_THAT(found, SizeIs(2)) << layout.strategy;
    for (const StepRecord& step : found) {
      EXPECT_EQ(step.step, ++done);
      ExpectNear(step.loss, expected[done - 1].loss);
      EXPECT_NEAR(step.grad_norm, expected[done - 1].grad_norm, 1e-4 * step.grad_norm);
    }
    ASSERT_THAT(ranks->links[0]->evals(), SizeIs(1)) << layout.strategy;
    ExpectNear(ranks->links[0]->evals()[0].loss, alone->links[0]->evals()[done / 2 - 1].loss);
  }
}

// Rank 0 cannot write; it must not block the others in a gather, nor stop training.
TEST_F(StrategiesTest, FailedSave_IsReportedAndTrainingContinues) {
  for (const char* strategy : {"fsdp", "zero1"}) {
    FullDisk no_space(0), some_space(3000);
    for (FullDisk* disk : {&no_space, &some_space}) {
      StartOrder order = Order(absl::StrCat(strategy, disk == &no_space), {strategy, 2}, 4);
      order.config.checkpoint_every = 2;
      order.config.checkpoint_last_save_retry_s = 0;

      const auto ranks = Run(order, *disk);

      EXPECT_THAT(ranks->links[0]->steps(), SizeIs(4));
      EXPECT_THAT(ranks->links[0]->FactsOf<SaveFailedFact>(), SizeIs(2));
      EXPECT_THAT(ranks->links[0]->FactsOf<SavedFact>(), SizeIs(0));
    }
  }
}

// The file holds whole weights, as a single GPU would write them; another layout resumes from the file.
TEST_F(StrategiesTest, FormatFull_HoldsWholeTensorsInOneFile) {
  const auto alone = Run(Order("alone", {"ddp", 1}, 4));
  for (const Layout& layout : {Layout{"fsdp", 2}, Layout{"zero1", 3}, Layout{"ddp", 2}, Layout{"hsdp", 4, 2}}) {
    for (bool optimizer : {false, true}) {
      StartOrder order = Order(absl::StrCat(layout.strategy, optimizer), layout, 2);
      order.config.checkpoint_every = 1;
      order.config.checkpoint_full = true;
      order.config.checkpoint_full_optimizer = optimizer;
      Run(order);

      const std::string path = JoinPath(order.config.checkpoint_dir, StepFolderName(2));
      auto checkpoint = Checkpoint::Open(path);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      auto weights = SafetensorsFile::Open(JoinPath(path, "model.safetensors"));
      ASSERT_TRUE(weights.ok()) << weights.status();
      size_t parameters = 0;
      for (const ManifestTensor& tensor : (*checkpoint)->manifest().tensors) {
        const bool whole = optimizer || tensor.role == kParameterRole;
        EXPECT_TRUE(!whole || tensor.pieces.size() == 1) << tensor.role << " " << tensor.name;
        if (tensor.role != kParameterRole) continue;
        ++parameters;
        ASSERT_NE((*weights)->Find(tensor.name), nullptr) << tensor.name;
        EXPECT_EQ((*weights)->Find(tensor.name)->shape, tensor.shape);
      }
      EXPECT_THAT((*weights)->tensors(), SizeIs(parameters));
      EXPECT_EQ(FileExists(JoinPath(path, "optimizer.safetensors")), optimizer);
      EXPECT_EQ(FileExists(JoinPath(path, "shard-00001.safetensors")), !optimizer);

      order.resume = true;
      order.config.steps = 4;
      order.world_size = order.local_world_size = 2;
      order.config.parallel.strategy = "zero2";
      order.config.parallel.shard = 0;
      const std::vector<StepRecord> found = Run(order)->links[0]->steps();
      ASSERT_THAT(found, SizeIs(2));
      for (size_t i = 0; i < 2; ++i) ExpectNear(found[i].loss, alone->links[0]->steps()[2 + i].loss);
    }
  }
}

// The save is requested during training. No file of the checkpoint holds all weights, because the ranks save shards,
// but a model can be initialized from the folder.
TEST_F(StrategiesTest, RequestedSave_IsMadeByAllRanks_AndTheLastSaveCanInitializeAModel) {
  StartOrder order = Order("run", {"fsdp", 2}, 8);
  auto all = std::make_unique<Ranks>();
  all->logs.resize(2);
  all->codes.resize(2);
  for (int r = 0; r < 2; ++r) all->links.push_back(std::make_unique<FakeLink>(&all->store));
  all->links[0]->SaveAfterReportOf(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      StartOrder own = order;
      own.rank = r;
      all->codes[r] = RunRank(
          own, {.link = *all->links[r], .file_system = FileSystem::Real(), .log = all->logs[r], .must_leave = [] {
                  return false;
                }});
    });
  }
  for (std::thread& thread : threads) thread.join();

  const std::vector<SavedFact> saved = all->links[0]->FactsOf<SavedFact>();
  ASSERT_THAT(saved, SizeIs(2)) << all->logs[0].str();
  EXPECT_EQ(saved[0].step, 4u) << "requested in step 3, agreed on in step 4";
  EXPECT_EQ(saved[1].step, 8u);
  StartOrder initialized = Order("initialized", {"ddp", 2}, 1);
  initialized.config.init_from = saved[1].path;
  const auto ranks = Run(initialized);
  EXPECT_LT(ranks->links[0]->steps()[0].loss, all->links[0]->steps()[0].loss - 0.01);
}

// A corrupt replica must not become part of a checkpoint.
TEST_F(StrategiesTest, ReplicasThatDiffer_FailTheSave_AndTheMessageNamesTheRank) {
  StartOrder order = Order("run", {"ddp", 3}, 6);
  order.config.checkpoint_every = 4;
  order.config.checkpoint_last_save_retry_s = 0;
  order.config.evaluate_every = 0;
  FakeStore store;
  std::vector<std::unique_ptr<FakeLink>> links;
  for (int r = 0; r < 3; ++r) links.push_back(std::make_unique<FakeLink>(&store));
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      StartOrder own = order;
      own.rank = r;
      std::ostringstream log;
      auto rank = PrepareRank(own, *links[r], FileSystem::Real(), log);
      ASSERT_TRUE(rank.ok()) << rank.status();
      int steps = 0;
      auto must_leave = [&] {
        at::NoGradGuard no_grad;
        if (++steps == 3 && r == 1) (*rank)->model->parameters()[2].tensor.view(-1).narrow(0, 5, 1).add_(1e-3);
        return false;
      };
      absl::Status status = Trainer(own, **rank, *links[r], FileSystem::Real(), log, must_leave).Run().status();
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();

  const std::vector<SaveFailedFact> failed = links[0]->FactsOf<SaveFailedFact>();
  ASSERT_FALSE(failed.empty());
  EXPECT_EQ(failed[0].step, 4u);
  EXPECT_THAT(failed[0].message, testing::HasSubstr("should hold the same values and do not"));
  EXPECT_THAT(failed[0].message, testing::ContainsRegex("ranks (1 and [0-9]+|[0-9]+ and 1) "));
  EXPECT_THAT(links[0]->FactsOf<SavedFact>(), SizeIs(0));
  EXPECT_THAT(*ListCheckpoints(order.config.checkpoint_dir), SizeIs(0));
}

// Weights that diverge: from some step on every loss is NaN, and all ranks stop in the same step.
TEST_F(StrategiesTest, StepsWithoutAnUpdateInARow_EndTheJobWithTheirCause) {
  StartOrder order = Order("run", {"fsdp", 2}, 1000);
  order.config.optimizer.lr = 1e6;
  order.config.optimizer.clip_norm = 0;
  order.config.nonfinite_limit = 3;
  order.config.evaluate_every = 0;

  const auto ranks = Run(order, FileSystem::Real(), kExitRefused);

  EXPECT_LT(ranks->links[0]->steps().size(), 100u);
  for (const auto& link : ranks->links) {
    ASSERT_THAT(link->FactsOf<RefusedFact>(), SizeIs(1));
    EXPECT_THAT(link->FactsOf<RefusedFact>()[0].message, testing::HasSubstr("3 steps in a row, the last of them "));
    EXPECT_THAT(link->FactsOf<RefusedFact>()[0].message, testing::HasSubstr("is not finite"));
  }
  EXPECT_TRUE(ranks->links[0]->steps().back().skipped);
}

// The trace that ranks write with diagnostics.events.
TEST_F(StrategiesTest, EventsOfEachRank_AreWrittenAsATrace) {
  StartOrder order = Order("run", {"fsdp", 2}, 2);
  order.config.events = true;

  Run(order);

  for (int rank = 0; rank < 2; ++rank) {
    const auto trace = nlohmann::json::parse(*ReadFile(TracePath(order.config.checkpoint_dir, rank)));
    std::set<std::string> categories;
    std::set<uint64_t> steps;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "M") continue;
      categories.insert(event["cat"].get<std::string>());
      steps.insert(event["args"]["step"].get<uint64_t>());
    }
    EXPECT_THAT(categories, testing::ElementsAre("backward", "forward", "free", "gather", "reduce", "step"));
    EXPECT_THAT(steps, testing::ElementsAre(1, 2));
  }
}

// The folder was claimed by a later generation than that of rank 1, which may still run on a host that was cut off.
TEST_F(StrategiesTest, RankOfAnEarlierGenerationThanTheFence_WritesNoTrace) {
  StartOrder order = Order("run", {"ddp", 2}, 2);
  order.config.events = true;
  FakeStore store;
  std::vector<TrainerExit> codes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      StartOrder own = order;
      own.rank = r;
      own.generation = r == 0 ? 3 : 2;
      FakeLink link(&store);
      link.set_go_status(absl::AbortedError("the generation is over"));
      std::ostringstream log;
      codes[r] = RunRank(
          own, {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_THAT(codes, testing::Each(kExitAborted));
  EXPECT_TRUE(FileExists(TracePath(order.config.checkpoint_dir, 0)));
  EXPECT_FALSE(FileExists(TracePath(order.config.checkpoint_dir, 1)));
}

// A rank's memory is corrupted between two comparisons: every rank ends at the next comparison, and none saves a
// corrupt parameter.
TEST_F(StrategiesTest, ParametersThatDiffer_EndTheJob_AndTheMessageNamesThem) {
  StartOrder order = Order("run", {"ddp", 3}, 6);
  order.config.hash_every_steps = 2;
  order.config.checkpoint_every = 4;
  FakeStore store;
  std::vector<absl::Status> results(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      StartOrder own = order;
      own.rank = r;
      FakeLink link(&store);
      std::ostringstream log;
      auto rank = PrepareRank(own, link, FileSystem::Real(), log);
      ASSERT_TRUE(rank.ok()) << rank.status();
      int steps = 0;
      // Called once in each step.
      auto must_leave = [&] {
        at::NoGradGuard no_grad;
        if (++steps == 3 && r == 1) (*rank)->model->parameters()[2].tensor.view(-1).narrow(0, 5, 1).add_(1e-3);
        return false;
      };
      results[r] = Trainer(own, **rank, link, FileSystem::Real(), log, must_leave).Run().status();
    });
  }
  for (std::thread& thread : threads) thread.join();

  for (const absl::Status& status : results) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(),
                testing::HasSubstr("after step 4 parameter ln_f.weight differs on rank 1 from that on "
                                   "the other ranks"));
  }
  EXPECT_FALSE(FileExists(JoinPath(order.config.checkpoint_dir, StepFolderName(4))));
}

// Frozen parameters keep their initial values and have no optimizer state in a checkpoint, and a run resumes from it.
TEST_F(StrategiesTest, FrozenParameters_AreSavedWithoutOptimizerState) {
  StartOrder order = Order("run", {"fsdp", 2}, 2);
  order.config.freeze = {"wte.*", "h.0.*"};
  order.config.checkpoint_every = 1;
  Run(order);

  auto first = *Checkpoint::Open(JoinPath(order.config.checkpoint_dir, StepFolderName(1)));
  auto second = *Checkpoint::Open(JoinPath(order.config.checkpoint_dir, StepFolderName(2)));
  for (const ManifestTensor& tensor : second->manifest().tensors) {
    const bool frozen = tensor.name.starts_with("wte.") || tensor.name.starts_with("h.0.");
    EXPECT_FALSE(frozen && tensor.role != "parameter") << tensor.role << " " << tensor.name;
    if (tensor.role != "parameter") continue;
    const auto before = std::find_if(
        first->manifest().tensors.begin(), first->manifest().tensors.end(),
        [&](const ManifestTensor& other) { return other.name == tensor.name && other.role == tensor.role; });
    EXPECT_EQ(tensor.pieces[0].hash == before->pieces[0].hash, frozen) << tensor.name;
  }

  order.resume = true;
  order.config.steps = 3;
  EXPECT_THAT(Run(order)->links[0]->steps(), SizeIs(1));
  order.config.steps = 4;
  order.config.freeze = {"wte.*"};
  const auto thawed = Run(order, FileSystem::Real(), kExitRefused);
  EXPECT_THAT(thawed->links[0]->FactsOf<RefusedFact>()[0].message, testing::HasSubstr("train.freeze: h.0."));
}

// A job that sets the keys of `parallel` below, including offload, saves; a job without these keys resumes and saves;
// the first job resumes again.
TEST_F(StrategiesTest, AllKeysTogether_ChangeNeitherLossesNorCheckpoints) {
  auto order_of = [&](const std::string& run, bool keys, uint64_t steps) {
    StartOrder order = Order(run, {"fsdp", keys ? 4 : 1}, steps);
    order.config.freeze = {"wte.*", "h.0.*"};
    if (!keys) return order;
    TrainConfig::Parallel& parallel = order.config.parallel;
    parallel.reshard_to = 2;
    parallel.persist_elements = 100;
    parallel.offload_optimizer = parallel.offload_parameters = true;
    parallel.optimizer_tile_elements = 500;
    return order;
  };
  const auto alone = Run(order_of("alone", false, 6));
  const std::vector<StepRecord> expected = alone->links[0]->steps();
  ASSERT_THAT(expected, SizeIs(6));

  for (uint64_t done = 0; done < 6; done += 2) {
    StartOrder order = order_of("run", done != 2, done + 2);
    order.resume = done > 0;

    const std::vector<StepRecord> found = Run(order)->links[0]->steps();

    ASSERT_THAT(found, SizeIs(2));
    for (size_t i = 0; i < 2; ++i) {
      ExpectNear(found[i].loss, expected[done + i].loss);
      EXPECT_NEAR(found[i].grad_norm, expected[done + i].grad_norm, 1e-4 * found[i].grad_norm);
    }
  }
}

// The masters of 3 x 10^12 frozen parameters need 13 TB. A 65,536th of them needs 200 MB.
TEST(CheckOffload, CountsTheMastersOfFrozenParametersWhole_UnlessParametersAreSharded) {
  StartOrder order;
  order.world_size = 1 << 16;
  order.config.model = {.layers = 64, .heads = 64, .width = 1 << 16, .context = 16, .vocabulary = 256};
  order.config.precision.param = "bf16";
  order.config.freeze = {"h.*"};
  order.config.parallel.offload_optimizer = true;
  const auto check = [&order](const char* strategy) {
    order.config.parallel.strategy = strategy;
    const absl::StatusOr<std::unique_ptr<Model>> part = MakePart(order, RankDevice(), /*tensor_group=*/nullptr);
    return part.ok() ? CheckOffload(order, **part) : part.status();
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(check("zero1"))) << check("zero1");
  EXPECT_EQ(check("fsdp"), absl::OkStatus());
}

TEST_F(StrategiesTest, GlobsThatFreezeNothing_AreRefused) {
  StartOrder order = Order("run", {"ddp", 2}, 2);
  order.config.freeze = {"h.7.*"};

  const auto ranks = Run(order, FileSystem::Real(), kExitRefused);

  for (const auto& link : ranks->links) {
    ASSERT_THAT(link->FactsOf<RefusedFact>(), SizeIs(1));
    const std::string message = link->FactsOf<RefusedFact>()[0].message;
    EXPECT_THAT(message, testing::StartsWith("no parameter matches 'h.7.*'"));
    EXPECT_THAT(message, testing::EndsWith("; train.freeze"));
  }
}

// Rank 1's host has a longer copy of the text: the job trains on the common part, or not at all.
TEST_F(StrategiesTest, UnevenData_IsRefusedWithBothNumbersOrJoined) {
  const std::string text = *ReadFile(folder_ / "text.txt");
  ASSERT_TRUE(WriteFileAtomically(folder_ / "longer.txt", absl::StrCat(text, text.substr(0, 1600))).ok());
  const int64_t samples = (static_cast<int64_t>(text.size()) - 1) / 16;
  auto run = [&](const std::string& name, bool join, bool uneven, TrainerExit expected) {
    StartOrder order = Order(name, {"zero2", 2}, 3);
    order.config.data.validation = 0;
    order.config.evaluate_every = 0;
    order.config.data.joins_uneven = join;
    auto all = std::make_unique<Ranks>();
    all->logs.resize(2);
    for (int r = 0; r < 2; ++r) all->links.push_back(std::make_unique<FakeLink>(&all->store));
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        StartOrder own = order;
        own.rank = r;
        if (uneven && r == 1) own.config.data.text = {folder_ / "longer.txt"};
        EXPECT_EQ(RunRank(own, {.link = *all->links[r],
                                .file_system = FileSystem::Real(),
                                .log = all->logs[r],
                                .must_leave = [] { return false; }}),
                  expected)
            << all->logs[r].str();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return all;
  };

  const auto refused = run("refused", false, true, kExitRefused);
  for (const auto& link : refused->links) {
    EXPECT_THAT(link->FactsOf<RefusedFact>()[0].message,
                testing::HasSubstr(absl::StrCat("samples to train on (train.data.text): ", samples + 100, " (rank 1), ",
                                                samples, " (rank 0); give all hosts the same files")));
  }

  const auto joined = run("joined", true, true, kExitDone), even = run("even", false, false, kExitDone);
  ASSERT_THAT(joined->links[0]->steps(), SizeIs(3));
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(joined->links[0]->steps()[step].loss, even->links[0]->steps()[step].loss);
  }
  EXPECT_THAT(joined->logs[0].str(), testing::HasSubstr("all ranks use the smallest number"));
}

TEST_F(StrategiesTest, SizesThatDoNotFitTheRanks_AreRefusedByEach) {
  StartOrder order = Order("run", {"hsdp", 1, 3}, 4);
  FakeLink link;
  std::ostringstream log;

  const TrainerExit code =
      RunRank(order, {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});

  EXPECT_EQ(code, kExitRefused);
  EXPECT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
}

}  // namespace
}  // namespace trainyard
