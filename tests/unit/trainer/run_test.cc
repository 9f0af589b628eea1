// Whole runs of the loop without a daemon: the result of training must not depend on where it was interrupted.
#include "worker/trainer/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <thread>

#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/model_export.h"
#include "checkpoint/reader.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RunTest : public SmallJobTest {
 protected:
  StartOrder Order(const std::string& run, uint64_t steps) {
    StartOrder order = SmallOrder(run, steps);
    order.config.model.dropout = 0.1;
    order.config.batch_global = 4;
    order.config.batch_micro = 2;
    order.config.lr_schedule.warmup_steps = 3;
    return order;
  }

  TrainerExit Run(const StartOrder& order, FakeLink& link, FileSystem& disk = FileSystem::Real(), bool leave = false) {
    log_.str("");
    return RunRank(order, {.link = link, .file_system = disk, .log = log_, .must_leave = [leave] { return leave; }});
  }

  // Runs both ranks of `order`, as threads.
  static void RunTwo(StartOrder order, FakeLink (&links)[2]) {
    order.world_size = 2;
    std::ostringstream logs[2];
    TrainerExit codes[2];
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r) {
      order.rank = r;
      ranks.emplace_back([&, r, order] {
        codes[r] = RunRank(
            order,
            {.link = links[r], .file_system = FileSystem::Real(), .log = logs[r], .must_leave = [] { return false; }});
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(codes[0], kExitDone) << logs[0].str();
    EXPECT_EQ(codes[1], kExitDone) << logs[1].str();
  }

  // Returns the losses of the steps after `first_step`.
  static std::vector<double> Losses(const FakeLink& link, uint64_t first_step = 0) {
    std::vector<double> losses;
    for (const StepRecord& step : link.steps()) {
      if (step.step > first_step) losses.push_back(step.loss);
    }
    return losses;
  }

  std::string Shard(const std::string& run, uint64_t step) {
    return *ReadFile(JoinPath(folder_ / run, StepFolderName(step)) + "/shard-00000.safetensors");
  }

  // Returns the steps in metrics.jsonl, in order; evaluations are negative numbers.
  std::vector<int64_t> MetricSteps(const std::string& run) {
    std::vector<int64_t> steps;
    std::istringstream lines(*ReadFile(JoinPath(folder_ / run, "metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      int64_t step = std::stoll(line.substr(line.find("\"step\":") + 7));
      steps.push_back(line.find("\"eval\"") == std::string::npos ? step : -step);
    }
    return steps;
  }

  std::ostringstream log_;
};

TEST_F(RunTest, TenStepsInOneOrTwoRuns_AreBitEqual) {
  FakeLink straight, first, second;
  StartOrder resumed = Order("two", 10);
  resumed.resume = true;
  StartOrder half = Order("two", 10);
  half.config.checkpoint_every = 5;
  first.StopAfterReportOf(4);

  ASSERT_EQ(Run(Order("one", 10), straight), kExitDone) << log_.str();
  ASSERT_EQ(Run(half, first), kExitDone) << log_.str();
  ASSERT_LT(first.steps().size(), 10u);
  ASSERT_EQ(Run(resumed, second), kExitDone) << log_.str();

  std::vector<double> joined = Losses(first);
  for (double loss : Losses(second)) joined.push_back(loss);
  EXPECT_EQ(Losses(straight), joined);
  EXPECT_EQ(Shard("one", 10), Shard("two", 10));
  EXPECT_THAT(MetricSteps("two"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_EQ(second.FactsOf<RestoredFact>().size(), 1u);
  EXPECT_GT(Losses(straight).front(), Losses(straight).back());
}

TEST_F(RunTest, RestartFromAnOlderStep_RepeatsTheStepsIdentically) {
  FakeLink whole, again;
  StartOrder order = Order("run", 9);
  order.config.checkpoint_every = 3;
  order.config.checkpoint_keep = 0;
  ASSERT_EQ(Run(order, whole), kExitDone);
  std::string shard = Shard("run", 9);
  StartOrder restart = order;
  restart.generation = 2;
  restart.restart_step = 3;
  // Otherwise the run would resume from the newer checkpoints.
  for (const char* newer : {"run/step-00000006", "run/step-00000009"}) std::filesystem::remove_all(folder_ / newer);

  ASSERT_EQ(Run(restart, again), kExitDone) << log_.str();

  EXPECT_EQ(Losses(again), Losses(whole, 3));
  EXPECT_EQ(Shard("run", 9), shard);
  EXPECT_THAT(MetricSteps("run"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_F(RunTest, Evaluation_RunsEveryNStepsAndAtTheEnd_AndChangesNothing) {
  FakeLink with, without;
  StartOrder order = Order("with", 5);
  order.config.evaluate_every = 2;
  order.config.evaluate_batches = 3;

  ASSERT_EQ(Run(order, with), kExitDone) << log_.str();
  ASSERT_EQ(Run(Order("without", 5), without), kExitDone);

  EXPECT_EQ(Losses(with), Losses(without));
  ASSERT_THAT(with.evals(), SizeIs(3));
  EXPECT_EQ(with.evals()[2].tokens, 3u * 2 * 16);
  EXPECT_THAT(MetricSteps("with"), ElementsAre(1, 2, -2, 3, 4, -4, 5, -5));
}

TEST_F(RunTest, Facts_ReportTheRunInOrder) {
  FakeLink link;
  StartOrder order = Order("run", 4);
  order.config.checkpoint_every = 2;

  ASSERT_EQ(Run(order, link), kExitDone);

  ASSERT_THAT(link.facts(), SizeIs(6));
  EXPECT_EQ(std::get<ReadyFact>(link.facts()[0]).first_step, 1u);
  EXPECT_EQ(std::get<SaveReadyFact>(link.facts()[1]).step, 2u);
  EXPECT_EQ(std::get<SavedFact>(link.facts()[2]).step, 2u);
  EXPECT_TRUE(std::get<SavedFact>(link.facts()[2]).stall_s.has_value()) << "this save was written in the background";
  SaveReadyFact ready = std::get<SaveReadyFact>(link.facts()[3]);
  SavedFact last = std::get<SavedFact>(link.facts()[4]);
  EXPECT_EQ(ready.path, last.path);
  EXPECT_EQ(ready.manifest_hash, last.manifest_hash);
  EXPECT_EQ(ready.size_bytes, last.size_bytes);
  EXPECT_FALSE(last.stall_s.has_value()) << "all ranks waited for this save";
  EXPECT_EQ(last.path, folder_ / "run/step-00000004");
  EXPECT_EQ(last.manifest_hash, (*Checkpoint::Open(last.path))->manifest_hash());
  FinishedFact finished = std::get<FinishedFact>(link.facts()[5]);
  EXPECT_EQ(finished.step, 4u);
  EXPECT_FALSE(finished.stopped);
  EXPECT_EQ(finished.loss, link.steps().back().loss);
}

TEST_F(RunTest, StopRequest_SavesAndEndsTheRunWithinThreeSteps) {
  FakeLink link;
  link.StopAfterReportOf(3);

  ASSERT_EQ(Run(Order("run", 50), link), kExitDone);

  FinishedFact finished = link.FactsOf<FinishedFact>().at(0);
  EXPECT_TRUE(finished.stopped);
  EXPECT_EQ(link.steps().size(), finished.step);
  EXPECT_LE(finished.step, 6u);
  EXPECT_EQ(link.FactsOf<SavedFact>().at(0).step, finished.step);
}

TEST_F(RunTest, SigTerm_SavesAndEndsTheRun) {
  FakeLink link;

  ASSERT_EQ(Run(Order("run", 50), link, FileSystem::Real(), /*leave=*/true), kExitDone);

  EXPECT_TRUE(link.FactsOf<FinishedFact>().at(0).stopped);
  EXPECT_LE(link.steps().size(), 2u);
}

TEST_F(RunTest, FinishedRank_DoesNotExitBeforeItsFactsAreAcknowledged) {
  FakeLink slow;
  slow.AcknowledgeAfterWaits(20);  // as if the daemon was stopped during the last step

  ASSERT_EQ(Run(Order("run", 2), slow), kExitDone) << log_.str();

  EXPECT_EQ(slow.waits(), 21);
}

TEST_F(RunTest, FinishedRankThatMustLeave_DoesNotWait) {
  FakeLink unresponsive;
  unresponsive.AcknowledgeAfterWaits(1'000'000);

  ASSERT_EQ(Run(Order("run", 2), unresponsive, FileSystem::Real(), /*leave=*/true), kExitDone) << log_.str();

  EXPECT_LE(unresponsive.waits(), 1);
}

TEST_F(RunTest, KeepTwo_RemovesOldCheckpointsOnlyWhenConfirmed) {
  FakeLink confirming, silent;
  silent.set_acknowledges(false);
  StartOrder order = Order("confirmed", 5);
  order.config.checkpoint_every = 1;
  order.config.checkpoint_keep = 2;
  StartOrder unconfirmed = order;
  unconfirmed.config.checkpoint_dir = folder_ / "unconfirmed";

  ASSERT_EQ(Run(order, confirming), kExitDone);
  ASSERT_EQ(Run(unconfirmed, silent), kExitDone);

  EXPECT_EQ(ListCheckpoints(folder_ / "confirmed")->size(), 2u);
  EXPECT_EQ(ListCheckpoints(folder_ / "unconfirmed")->size(), 5u);
}

TEST_F(RunTest, DiskFullWhileSaving_IsReportedAndTrainingContinues) {
  FakeLink link;
  FullDisk disk(1000);
  StartOrder order = Order("run", 6);
  order.config.checkpoint_every = 2;
  order.config.checkpoint_last_save_retry_s = 0;

  ASSERT_EQ(Run(order, link, disk), kExitDone);

  std::vector<SaveFailedFact> failed = link.FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(3));
  EXPECT_EQ(failed[0].step, 2u);
  EXPECT_THAT(failed[0].message, HasSubstr("No space left"));
  EXPECT_THAT(link.steps(), SizeIs(6));
  EXPECT_THAT(log_.str(), HasSubstr("training continues"));
  EXPECT_THAT(*ListCheckpoints(folder_ / "run"), SizeIs(0));
}

TEST_F(RunTest, DamagedCheckpoint_FallsBackToThePreviousOne) {
  FakeLink first, second;
  StartOrder order = Order("run", 6);
  order.config.checkpoint_every = 2;
  ASSERT_EQ(Run(order, first), kExitDone);
  FlipByte(folder_ / "run/step-00000006/shard-00000.safetensors", 5000);
  order.resume = true;

  ASSERT_EQ(Run(order, second), kExitDone) << log_.str();

  EXPECT_EQ(second.FactsOf<RestoredFact>().at(0).step, 4u);
  EXPECT_THAT(log_.str(), HasSubstr("checkpoint of step 6 is damaged"));
  EXPECT_EQ(Losses(second), Losses(first, 4));
  EXPECT_TRUE(Checkpoint::Open(folder_ / "run/step-00000006").ok());
}

TEST_F(RunTest, BadInput_IsRefusedWithASentence) {
  FakeLink trained;
  ASSERT_EQ(Run(Order("used", 2), trained), kExitDone);
  StartOrder other_model = Order("used", 4), beyond = Order("used", 1), damaged = Order("damaged", 2);
  other_model.resume = beyond.resume = damaged.resume = true;
  other_model.config.model.width = 32;
  ASSERT_TRUE(MakeFolders(folder_ / "damaged/step-00000002").ok());
  StartOrder no_data = Order("a", 2), no_init = Order("c", 2);
  no_data.config.data.text = {folder_ / "missing.txt"};
  no_init.config.init_from = folder_ / "missing.safetensors";
  struct Case {
    StartOrder order;
    std::vector<std::string> expected;
  };
  const std::vector<Case> cases = {
      {Order("used", 4),
       {"used is not empty (it holds metrics.jsonl, step-00000002)", "--resume", "another checkpoint.dir"}},
      {other_model, {"F32 [256, 16], this job needs F32 [256, 32]"}},
      {beyond, {"step-00000002 is beyond train.steps 1"}},
      {damaged, {"the only checkpoint in ", "cannot be trusted", "manifest.json"}},
      {no_data, {"host w1", "missing.txt"}},
      {no_init, {"train.model.init_from", "missing.safetensors"}},
  };
  for (const Case& c : cases) {
    FakeLink link;

    EXPECT_EQ(Run(c.order, link), kExitRefused) << c.expected[0];

    ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1)) << c.expected[0] << log_.str();
    for (const std::string& text : c.expected) EXPECT_THAT(link.FactsOf<RefusedFact>()[0].message, HasSubstr(text));
  }
}

TEST_F(RunTest, InitFromTheShardOfACheckpoint_StartsFromItsWeights) {
  FakeLink first, second;
  ASSERT_EQ(Run(Order("first", 3), first), kExitDone);
  StartOrder order = Order("second", 1);
  order.config.init_from = folder_ / "first/step-00000003/shard-00000.safetensors";

  ASSERT_EQ(Run(order, second), kExitDone) << log_.str();

  EXPECT_LT(second.steps()[0].loss, first.steps()[0].loss - 0.01);
}

TEST_F(RunTest, TwoRanks_LeaveAtTheSameStepAndResumeBitEqual) {
  auto both = [&](const std::string& run, bool resume, uint64_t stop_after, std::vector<double>& losses) {
    FakeStore store;
    FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
    links[0].StopAfterReportOf(stop_after);
    StartOrder order = Order(run, 8);
    order.resume = resume;
    RunTwo(order, links);
    EXPECT_EQ(links[0].FactsOf<FinishedFact>().at(0).step, links[1].FactsOf<FinishedFact>().at(0).step);
    EXPECT_THAT(links[1].steps(), SizeIs(0));
    for (double loss : Losses(links[0])) losses.push_back(loss);
  };
  std::vector<double> straight, parts;

  both("one", false, /*stop_after=*/0, straight);
  both("two", false, /*stop_after=*/3, parts);
  ASSERT_LT(parts.size(), 8u);
  both("two", true, /*stop_after=*/0, parts);

  EXPECT_EQ(straight, parts);
  EXPECT_EQ(Shard("one", 8), Shard("two", 8));
}

// Step 0 is a valid step: a rank that mistook it for "from scratch" would train with weights of its own.
TEST_F(RunTest, TwoRanks_ResumeFromAnImportedModelOfStepZeroIdentically) {
  FakeLink first;
  ASSERT_EQ(Run(Order("first", 3), first), kExitDone);
  const ModelSizes sizes{.layers = 2, .heads = 2, .width = 16, .context = 16, .vocabulary = 256};
  auto trained = Checkpoint::Open(folder_ / "first/step-00000003");
  ASSERT_TRUE(trained.ok()) << trained.status();
  ASSERT_TRUE(ExportModel(**trained, sizes, folder_ / "gpt2", FileSystem::Real()).ok());
  auto imported = ImportModel(folder_ / "gpt2", sizes, folder_ / "imported", SmallManifest(0), FileSystem::Real());
  ASSERT_TRUE(imported.ok()) << imported.status();
  auto both = [&](const std::string& run, bool resume, const std::string& init_from) {
    FakeStore store;
    FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
    StartOrder order = Order(run, 4);
    order.resume = resume;
    order.config.init_from = init_from;
    RunTwo(order, links);
    return Losses(links[0]);
  };

  std::vector<double> from_import = both("imported", /*resume=*/true, "");
  std::vector<double> from_file = both("plain", false, folder_ / "first/step-00000003/shard-00000.safetensors");

  ASSERT_EQ(from_import.size(), 4u);
  EXPECT_EQ(from_import, from_file);
  EXPECT_LT(from_import[0], first.steps()[0].loss - 0.01);
}

TEST_F(RunTest, ResumeWithOtherData_IsRefusedWithTheNameOfTheFileUnlessAllowed) {
  FakeLink trained;
  ASSERT_EQ(Run(Order("run", 2), trained), kExitDone);
  StartOrder order = Order("run", 3);
  order.resume = true;
  const std::string path = folder_ / "text.txt", original = *ReadFile(path);
  std::string edited = original;
  edited[100] = 'X';
  ASSERT_TRUE(WriteFileAtomically(path, edited).ok());

  FakeLink changed;
  EXPECT_EQ(Run(order, changed), kExitRefused);
  const std::string message = changed.FactsOf<RefusedFact>().at(0).message;
  EXPECT_THAT(message, HasSubstr(absl::StrCat(path, " has the hash ", HashHex(edited), ", had ", HashHex(original))));
  EXPECT_THAT(message, HasSubstr("--allow-data-change"));

  // After an automatic restart only the sizes are checked.
  ASSERT_TRUE(WriteFileAtomically(path, edited + "more").ok());
  order.generation = 2;
  FakeLink again;
  EXPECT_EQ(Run(order, again), kExitRefused);
  EXPECT_THAT(again.FactsOf<RefusedFact>().at(0).message,
              HasSubstr(absl::StrCat(" has ", original.size() + 4, " bytes, had ", original.size())));

  // The same bytes under other names are the same data.
  ASSERT_TRUE(MakeFolders(folder_ / "parts").ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "parts/a.txt", original.substr(0, 1000)).ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "parts/b.txt", original.substr(1000)).ok());
  order.config.data.text = {folder_ / "parts"};
  order.generation = 3;
  FakeLink moved;
  EXPECT_EQ(Run(order, moved), kExitDone) << log_.str();

  order.config.data.text = {path};
  order.config.steps = 4;
  order.generation = 4;
  order.config.allow_data_change = true;
  FakeLink allowed;
  EXPECT_EQ(Run(order, allowed), kExitDone) << log_.str();
  EXPECT_THAT(log_.str(), HasSubstr("warning: train.data is not what the checkpoint was made with"));
}

TEST_F(RunTest, StopWhoseSaveFails_IsCancelledOnEveryRank_ButNotANewerOneThatNeedsNoSave) {
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
  links[0].StopAfterReportOf(3, /*needs_save=*/true);
  links[0].StopAgainAfterReportOf(7);
  std::ostringstream logs[2];
  TrainerExit codes[2];
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      StartOrder order = Order("run", 50);
      order.rank = r;
      order.world_size = 2;
      FullDisk disk(1000);
      codes[r] =
          RunRank(order, {.link = links[r], .file_system = disk, .log = logs[r], .must_leave = [] { return false; }});
    });
  }
  for (std::thread& rank : ranks) rank.join();

  ASSERT_EQ(codes[0], kExitDone) << logs[0].str();
  ASSERT_EQ(codes[1], kExitDone) << logs[1].str();
  std::vector<SaveFailedFact> failed = links[0].FactsOf<SaveFailedFact>();
  ASSERT_THAT(failed, SizeIs(2)) << logs[0].str();
  EXPECT_EQ(failed[0].stop_request, 1u) << "the ranks continued after this failure";
  EXPECT_LE(failed[0].step, 6u);
  EXPECT_EQ(failed[1].stop_request, 0u) << "the ranks ended after this failure";
  EXPECT_THAT(logs[0].str(), HasSubstr("; no checkpoint holds this step yet"));
  for (const FakeLink& link : links) {
    ASSERT_THAT(link.FactsOf<FinishedFact>(), SizeIs(1));
    EXPECT_TRUE(link.FactsOf<FinishedFact>()[0].stopped);
    EXPECT_EQ(link.FactsOf<FinishedFact>()[0].step, failed[1].step);
    EXPECT_GT(failed[1].step, 7u);
  }
}

TEST_F(RunTest, MissingRecordedCheckpoint_FailsTheRank_ButDoesNotRefuseTheJob) {
  FakeLink link;
  StartOrder order = Order("elsewhere", 5);
  order.generation = 2;
  order.restart_step = 40;

  EXPECT_EQ(Run(order, link), kExitFailed) << log_.str();

  ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_TRUE(link.FactsOf<RefusedFact>()[0].checkpoint_missing);
  EXPECT_THAT(link.FactsOf<RefusedFact>()[0].message,
              HasSubstr("the checkpoint of step 40 that was recorded is not in"));
}

TEST_F(RunTest, Phases_AreReportedByEveryRankAndIncludeASaveThatRanksWaitFor) {
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};
  std::ostringstream logs[2];
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      StartOrder order = Order("run", 4);
      order.rank = r;
      order.world_size = 2;
      order.config.batch_global = 6;  // three micro-batches: two for rank 0, one for rank 1
      order.config.checkpoint_every = 2;
      order.config.evaluate_every = 3;
      order.config.evaluate_batches = 2;
      RunRank(order, {.link = links[r], .file_system = FileSystem::Real(), .log = logs[r], .must_leave = [] {
                        return false;
                      }});
    });
  }
  for (std::thread& rank : ranks) rank.join();

  // The save of step 2 continues while the ranks train; for the last one all ranks wait.
  std::vector<Phase> expected = {Phase::kJoining,  Phase::kLoad,  Phase::kReady,    Phase::kFirstStep,
                                 Phase::kTrain,    Phase::kTrain, Phase::kEvaluate, Phase::kTrain,
                                 Phase::kEvaluate, Phase::kSave,  Phase::kLeaving,  Phase::kEnded};
  EXPECT_EQ(links[1].phases(), expected) << logs[1].str();
  expected.insert(expected.begin(), Phase::kLoad);  // rank 0 first chooses the checkpoint
  EXPECT_EQ(links[0].phases(), expected) << logs[0].str();
  EXPECT_EQ(links[0].work().steps, 4u);
  EXPECT_EQ(links[0].work().micro_batches, 8u);
  EXPECT_EQ(links[1].work().micro_batches, 4u);
  EXPECT_GT(links[1].work().compute_s, 0);
  // The communicator is destroyed, but the link may still poll.
  EXPECT_THAT(links[0].poll()(), SizeIs(0));
}

// Before it joins, rank 0 may verify a large partial checkpoint.
TEST_F(RunTest, OtherRanks_WaitForHoursUntilRankZeroJoins) {
  FakeStore store;
  FakeLink links[2] = {FakeLink(&store), FakeLink(&store)};

  RunTwo(Order("run", 1), links);

  ASSERT_FALSE(links[1].get_timeouts().empty());
  EXPECT_EQ(links[1].get_timeouts().front(), absl::Hours(12));
}

}  // namespace
}  // namespace trainyard
