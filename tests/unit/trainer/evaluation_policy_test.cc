#include "worker/trainer/evaluation_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

EvaluationPolicy::Settings Patience(uint64_t patience, double min_delta = 0) {
  return {.patience = patience, .min_delta = min_delta, .steps = 1000, .tokens = 64};
}

// Observes losses after steps 10, 20, ... Returns the step after which training ends; 0: it does not.
uint64_t EndOf(EvaluationPolicy& policy, const std::vector<double>& losses) {
  uint64_t step = 0;
  for (double loss : losses) {
    policy.Observe(step += 10, loss);
    if (!policy.EndReason().empty()) return step;
  }
  return 0;
}

TEST(EvaluationPolicy, TrainingEnds_AfterPatienceEvaluationsWithoutALowerLoss) {
  EvaluationPolicy policy(Patience(3));

  EXPECT_EQ(EndOf(policy, {3.0, 2.5, 2.6, 2.4, 2.4, 2.41, 2.5}), 70u);

  EXPECT_EQ(policy.EndReason(),
            "stopped after step 70 of 1000: the evaluation loss has not fallen for 3 evaluations; it last fell at step "
            "40, to 2.4000");
}

TEST(EvaluationPolicy, WithoutPatience_TrainingNeverEnds) {
  EvaluationPolicy policy(Patience(0));

  EXPECT_EQ(EndOf(policy, {1, 2, 3, 4, 5, 6, 7, 8, kNan}), 0u);
}

TEST(EvaluationPolicy, PatienceOfOne_EndsAtTheFirstLossThatIsNotLower) {
  EvaluationPolicy policy(Patience(1));

  EXPECT_EQ(EndOf(policy, {3, 2, 2}), 30u);

  EXPECT_THAT(policy.EndReason(), HasSubstr("for 1 evaluation;"));
}

TEST(EvaluationPolicy, LossThatFallsByLessThanMinDelta_DoesNotCount) {
  EvaluationPolicy slow(Patience(2, 0.1)), fast(Patience(2, 0.1));

  EXPECT_EQ(EndOf(slow, {3.0, 2.95, 2.9001}), 30u);
  EXPECT_EQ(EndOf(fast, {3.0, 2.95, 2.85, 2.8, 2.7}), 0u);

  EXPECT_THAT(slow.EndReason(), HasSubstr("has not fallen by more than 0.1 for 2 evaluations"));
}

TEST(EvaluationPolicy, LossThatIsNotFinite_CountsAsNoImprovement) {
  EvaluationPolicy policy(Patience(2)), never(Patience(2));

  EXPECT_EQ(EndOf(policy, {3.0, kNan, 2.0, -kInfinity, kInfinity}), 50u);
  EXPECT_EQ(EndOf(never, {kNan, kInfinity}), 20u);

  EXPECT_THAT(policy.EndReason(), HasSubstr("it last fell at step 30, to 2.0000"));
  EXPECT_THAT(never.EndReason(), HasSubstr("2 evaluations in a row ended without a finite loss"));
  EXPECT_FALSE(never.StateAt(20).loss.has_value());
}

TEST(EvaluationPolicy, RestoredRun_DecidesLikeAnUninterruptedOne) {
  const std::vector<double> losses = {3.0, 2.5, 2.6, 2.4, 2.45, kNan, 2.44, 2.3, 2.5, 2.5, 2.5, 2.2};
  EvaluationPolicy whole(Patience(3));
  const uint64_t end = EndOf(whole, losses);
  ASSERT_EQ(end, 70u);
  for (size_t cut = 1; cut < end / 10; ++cut) {
    EvaluationPolicy before(Patience(3)), after(Patience(3));
    for (size_t i = 0; i < cut; ++i) before.Observe(10 * (i + 1), losses[i]);

    // Saved a few steps after the evaluation.
    const uint64_t step = 10 * cut + 3;
    EXPECT_EQ(after.Restore({.step = step, .evaluation = before.StateAt(step), .of_this_job = true}), "");
    for (size_t i = cut; after.EndReason().empty() && i < losses.size(); ++i) after.Observe(10 * (i + 1), losses[i]);

    EXPECT_EQ(after.EndReason(), whole.EndReason()) << "restored after " << cut << " evaluations";
    EXPECT_EQ(after.StateAt(end), whole.StateAt(end)) << "restored after " << cut << " evaluations";
  }
}

TEST(EvaluationPolicy, EvaluationOutsideTheInterval_DoesNotCount) {
  EvaluationPolicy policy(Patience(2));
  EndOf(policy, {2.0, 2.1});
  const ManifestEvaluation before = policy.StateAt(25);

  policy.Observe(25, 1.0, /*counts=*/false);

  EXPECT_EQ(policy.EndReason(), "");
  EXPECT_EQ(policy.StateAt(25).loss, 1.0);
  EXPECT_EQ(policy.StateAt(26), before);
}

TEST(EvaluationPolicy, RestartedJobThatHadEnded_EndsAgain) {
  EvaluationPolicy ended(Patience(2)), restarted(Patience(2));
  EndOf(ended, {2.0, 2.1, 2.2});

  restarted.Restore({.step = 30, .evaluation = ended.StateAt(30), .of_this_job = true});

  EXPECT_EQ(restarted.EndReason(), ended.EndReason());
}

TEST(EvaluationPolicy, JobThatResumesARunThatHadEnded_CountsFromZero) {
  EvaluationPolicy ended(Patience(2)), resumed(Patience(2)), patient(Patience(4));
  EndOf(ended, {2.0, 2.1, 2.2});
  const EvaluationPolicy::Restored restored{.step = 30, .evaluation = ended.StateAt(30)};

  EXPECT_THAT(resumed.Restore(restored), HasSubstr("had ended early, after step 30"));
  EXPECT_EQ(patient.Restore(restored), "") << "with a patience of 4 the run had not ended";

  EXPECT_EQ(resumed.EndReason(), "");
  EXPECT_EQ(EndOf(resumed, {2.1, 2.05}), 20u);
  EXPECT_THAT(resumed.EndReason(), HasSubstr("it last fell at step 10, to 2.0000"));
  EXPECT_EQ(EndOf(patient, {2.1, 2.05}), 20u);
}

TEST(EvaluationPolicy, LossesOverOtherData_AreNotCompared) {
  EvaluationPolicy ended(Patience(2)), resumed({.patience = 2, .steps = 1000, .tokens = 128});
  EndOf(ended, {2.0, 2.1, 2.2});

  const std::string note = resumed.Restore({.step = 30, .evaluation = ended.StateAt(30), .of_this_job = true});

  EXPECT_THAT(note, HasSubstr("128 tokens, and covered 64 tokens"));
  EXPECT_EQ(resumed.EndReason(), "");
  EXPECT_FALSE(resumed.StateAt(31).best_loss.has_value());
}

EvaluationPolicy::Settings KeepBest() { return {.keep_best = true, .steps = 1000, .tokens = 64}; }

TEST(EvaluationPolicy, EachLowestLoss_IsSaved) {
  EvaluationPolicy policy(KeepBest());
  std::vector<bool> saves;
  uint64_t step = 0;
  for (double loss : {3.0, 3.1, 2.9, kNan, 2.9, 2.8}) {
    policy.NoteSaves(step, 0);  // each save succeeds
    policy.Observe(++step, loss);
    saves.push_back(policy.MustSave());
  }

  EXPECT_THAT(saves, ::testing::ElementsAre(true, false, true, false, false, true));
  EXPECT_FALSE(EvaluationPolicy(Patience(1)).MustSave());
}

TEST(EvaluationPolicy, LossWhoseSaveFailed_IsNotTheLowest) {
  EvaluationPolicy policy(KeepBest());
  policy.Observe(10, 3.0);
  policy.NoteSaves(10, 0);
  policy.Observe(20, 2.0);
  ASSERT_TRUE(policy.MustSave());
  policy.NoteSaves(23, 0);  // the save of step 20 failed, and was repeated with the state of step 23

  policy.Observe(30, 2.5);

  EXPECT_TRUE(policy.MustSave()) << "the best checkpoint that exists has the loss 3.0";
  EXPECT_EQ(policy.StateAt(25).lowest_saved, 3.0);
  EXPECT_EQ(policy.StateAt(30).lowest_saved, 2.5)
      << "this state is only read from the checkpoint of step 30, which is then the best one";
}

TEST(EvaluationPolicy, SaveUnderWay_CountsUntilItsOutcomeIsKnown) {
  EvaluationPolicy policy(KeepBest());
  policy.Observe(10, 2.0);
  policy.NoteSaves(0, 0);

  policy.Observe(20, 2.5);

  EXPECT_FALSE(policy.MustSave());
  EXPECT_FALSE(policy.StateAt(21).lowest_saved.has_value());
}

TEST(EvaluationPolicy, FailedCommit_MakesTheNextEvaluatedStepBeSaved) {
  EvaluationPolicy policy(KeepBest());
  policy.Observe(10, 2.0);
  policy.NoteSaves(10, 0);
  policy.NoteSaves(10, 1);

  policy.Observe(20, 2.5);

  EXPECT_TRUE(policy.MustSave());
}

TEST(EvaluationPolicy, RestoredRun_KnowsTheLowestLossThatIsSaved) {
  EvaluationPolicy before(KeepBest()), after(KeepBest()), without({.steps = 1000, .tokens = 64});
  before.Observe(10, 2.0);
  const EvaluationPolicy::Restored restored{.step = 10, .evaluation = before.StateAt(10), .of_this_job = true};
  after.Restore(restored);
  without.Restore(restored);

  after.Observe(20, 2.5);
  without.Observe(20, 1.5);

  EXPECT_FALSE(after.MustSave());
  EXPECT_FALSE(without.MustSave());
  EXPECT_FALSE(without.StateAt(20).lowest_saved.has_value()) << "without keep_best that checkpoint may be removed";
}

TEST(EvaluationPolicy, AfterEvaluationsOfOtherData_TheSearchBeginsAgain) {
  EvaluationPolicy::Settings settings = Patience(2);
  settings.data_hash = "old";
  EvaluationPolicy before(settings);
  before.Observe(10, 1.0);
  before.Observe(20, 2.0);
  const ManifestEvaluation state = before.StateAt(20);
  EvaluationPolicy same(settings), unrecorded(settings);
  settings.data_hash = "new";
  EvaluationPolicy other(settings);
  ManifestEvaluation of_version_three = state;
  of_version_three.data_hash.clear();

  EXPECT_EQ(same.Restore({.step = 20, .evaluation = state, .of_this_job = true}), "");
  EXPECT_THAT(other.Restore({.step = 20, .evaluation = state, .of_this_job = true}),
              HasSubstr("other data than before the checkpoint"));
  EXPECT_THAT(unrecorded.Restore({.step = 20, .evaluation = of_version_three, .of_this_job = true}),
              HasSubstr("does not record which data"));

  same.Observe(30, 1.5);
  EXPECT_NE(same.EndReason(), "");
  for (EvaluationPolicy* policy : {&other, &unrecorded}) {
    policy->Observe(30, 1.5);
    EXPECT_EQ(policy->EndReason(), "");
    EXPECT_EQ(policy->StateAt(30).best_loss, 1.5);
  }
  EXPECT_EQ(other.StateAt(30).data_hash, "new");
}

}  // namespace
}  // namespace trainyard
