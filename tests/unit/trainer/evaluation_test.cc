// Runs that end early, keep the checkpoint with the lowest evaluation loss, or complete epochs of their data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "tests/unit/trainer/strategies_fixture.h"
#include "worker/trainer/metrics.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class EvaluationTest : public StrategiesTest {
 protected:
  // Evaluates every 2 steps. Only the first evaluation counts as an improvement, because no loss falls by 100. So the
  // run ends after step 6.
  StartOrder Impatient(const std::string& run, const Layout& layout) {
    StartOrder order = Order(run, layout, 20);
    order.config.evaluate_patience = 2;
    order.config.evaluate_min_delta = 100;
    return order;
  }
  static void ExpectEndAfter(const Ranks& all, uint64_t step) {
    for (const auto& link : all.links) {
      const FinishedFact finished = link->FactsOf<FinishedFact>().at(0);
      EXPECT_EQ(finished.step, step);
      EXPECT_FALSE(finished.stopped);
      EXPECT_EQ(finished.unsaved, "");
      EXPECT_THAT(finished.ended_early, HasSubstr(absl::StrCat("stopped after step ", step, " of 20: ")));
      EXPECT_THAT(finished.ended_early, HasSubstr("has not fallen by more than 100 for 2 evaluations"));
    }
  }
  static std::vector<std::string> EpochLines(const Ranks& all) {
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(all.logs[0].str(), '\n')) {
      if (absl::StartsWith(line, "Epoch")) lines.emplace_back(line);
    }
    return lines;
  }
};

TEST_F(EvaluationTest, EachLayout_EndsAfterTheSameStepAndSavesIt) {
  for (const Layout& layout : {Layout{"ddp", 1}, Layout{"zero1", 2}, Layout{"fsdp", 3}}) {
    const std::string run = absl::StrCat(layout.strategy, layout.ranks);

    const auto all = Run(Impatient(run, layout));

    ExpectEndAfter(*all, 6);
    EXPECT_THAT(all->logs[0].str(), HasSubstr("stopped after step 6 of 20: the evaluation loss has not fallen"));
    EXPECT_EQ(all->links[0]->FactsOf<SavedFact>().back().step, 6u);
    const auto checkpoint = Checkpoint::Open(folder_ / run + "/step-00000006");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ManifestEvaluation& evaluation = *(*checkpoint)->manifest().evaluation;
    EXPECT_EQ(evaluation.without_improvement, 2u);
    EXPECT_EQ(evaluation.best_step, 2u);
    EXPECT_EQ(evaluation.loss, all->links[0]->evals().back().loss);
    EXPECT_EQ(evaluation.best_loss, all->links[0]->evals().front().loss);
  }
}

TEST_F(EvaluationTest, EvaluationLoss_DoesNotDependOnTheNumberOfRanks) {
  std::vector<double> losses;
  for (int ranks : {1, 2, 3}) {
    StartOrder order = Order(absl::StrCat("run", ranks), {"ddp", ranks}, 2);
    order.config.optimizer.lr = 0;

    losses.push_back(Run(order)->links[0]->evals().at(0).loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

// With fsdp, ranks wait for one another in each pass, also in the evaluations after every second step.
TEST_F(EvaluationTest, TimesOfAStep_CountEachWaitOnceAndNoneOfAnEvaluation) {
  const auto all = Run(Order("run", {"fsdp", 3}, 6));

  const std::vector<StepRecord> steps = all->links[0]->steps();
  ASSERT_EQ(steps.size(), 6u);
  for (const StepRecord& step : steps) {
    EXPECT_LE(step.compute_s + step.exposed_communication_s, step.step_s + 1e-6) << "step " << step.step;
  }
}

TEST_F(EvaluationTest, RunThatIsInterrupted_EndsAfterTheSameStep) {
  StartOrder order = Impatient("run", {"fsdp", 2});
  order.config.steps = 3;
  Run(order);
  order.config.steps = 20;
  order.generation = 2;

  const auto all = Run(order);

  EXPECT_EQ(all->links[0]->FactsOf<RestoredFact>().at(0).step, 3u);
  ExpectEndAfter(*all, 6);
}

TEST_F(EvaluationTest, OtherHeldOutData_BeginTheSearchAgain) {
  StartOrder order = Impatient("run", {"fsdp", 2});
  const std::string held_out = folder_ / "held_out.txt";
  order.config.data.held_out = {held_out};
  ASSERT_TRUE(WriteFileAtomically(held_out, std::string(400, 'a')).ok());
  order.config.steps = 3;
  Run(order);
  order.config.steps = 20;
  order.generation = 2;
  ASSERT_TRUE(WriteFileAtomically(held_out, std::string(400, 'b')).ok());

  const auto all = Run(order);

  EXPECT_THAT(all->logs[0].str(), HasSubstr("covers other data than before the checkpoint"));
  // The evaluation after step 4 is the first one.
  ExpectEndAfter(*all, 8);
  EXPECT_EQ(FindBest(folder_ / "run")->value().step, 8u) << "losses of other data were compared";
}

TEST_F(EvaluationTest, JobThatHadEnded_MakesNoFurtherStepWhenItIsRestarted) {
  StartOrder order = Impatient("run", {"fsdp", 2});
  Run(order);
  order.generation = 2;

  const auto all = Run(order);

  ExpectEndAfter(*all, 6);
  EXPECT_THAT(all->links[0]->steps(), IsEmpty());
  EXPECT_THAT(all->logs[0].str(), HasSubstr("finished after step 6\n")) << "no step was made, so no loss is known";
}

TEST_F(EvaluationTest, RunThatHadEnded_ContinuesIfTheUserResumesIt) {
  StartOrder order = Impatient("run", {"fsdp", 2});
  Run(order);
  order.job_id = "bcdefghi";
  order.resume = true;

  const auto all = Run(order);

  EXPECT_THAT(all->logs[0].str(), HasSubstr("had ended early, after step 6, and was resumed"));
  ExpectEndAfter(*all, 10);
}

TEST_F(EvaluationTest, KeepBest_KeepsTheCheckpointWithTheLowestLoss) {
  StartOrder order = Order("run", {"fsdp", 2}, 12);
  order.config.evaluate_every = 1;
  // The learning rate grows to 20, so that the loss rises.
  order.config.optimizer.lr = 20;
  order.config.lr_schedule.warmup_steps = 12;
  order.config.checkpoint_keep = 1;
  order.config.checkpoint_keep_best = true;

  const auto all = Run(order);

  const std::vector<EvalRecord> evals = all->links[0]->evals();
  const auto best = std::min_element(evals.begin(), evals.end(),
                                     [](const EvalRecord& a, const EvalRecord& b) { return a.loss < b.loss; });
  ASSERT_LT(best->step, 12u) << "the loss fell until the end, so that this test shows nothing";
  std::vector<uint64_t> steps;
  const std::vector<StepFolder> folders = *ListCheckpoints(folder_ / "run");
  for (const StepFolder& folder : folders) steps.push_back(folder.step);
  EXPECT_THAT(steps, ElementsAre(12, best->step));
  EXPECT_EQ(FindBest(folder_ / "run")->value().step, best->step);
  std::vector<std::string> skipped;
  EXPECT_EQ((*OpenCheckpointOrNewest(folder_ / "run/best", skipped))->manifest().evaluation->loss, best->loss);
}

TEST_F(EvaluationTest, EachEpoch_HasALineWithTheMeanLoss_AlsoIfTheRunIsInterrupted) {
  StartOrder order = Order("whole", {"ddp", 1}, 30);
  ASSERT_TRUE(WriteFileAtomically(folder_ / "text.txt", std::string(900, 'a') + std::string(900, 'b')).ok());
  order.config.evaluate_every = 0;
  const auto whole = Run(order);
  const std::vector<std::string> lines = EpochLines(*whole);

  order.config.checkpoint_dir = folder_ / "parts";
  order.config.steps = 20;
  std::vector<std::string> in_parts = EpochLines(*Run(order));
  order.config.steps = 30;
  order.generation = 2;
  for (std::string& line : EpochLines(*Run(order))) in_parts.push_back(std::move(line));

  ASSERT_GE(lines.size(), 1u);
  EXPECT_EQ(in_parts, lines);
  // 1800 bytes, of which a tenth is for evaluation, give 101 samples of 16 targets, which 17 steps of 6 samples use.
  double sum = 0;
  for (const StepRecord& step : whole->links[0]->steps()) {
    if (step.step <= 17) sum += step.loss / 17;
  }
  EXPECT_EQ(lines[0], absl::StrFormat("Epoch 1: loss = %.4f", sum));
  EXPECT_THAT(*ReadFile(folder_ / "whole/metrics.jsonl"), HasSubstr("\"step\":3,"));
  EXPECT_THAT(*ReadFile(folder_ / "whole/metrics.jsonl"), HasSubstr("\"epoch\":0.0594"));
}

}  // namespace
}  // namespace trainyard
