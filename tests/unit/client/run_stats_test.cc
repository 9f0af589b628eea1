// The statistics of a run, which are computed from its events.
#include "client/run_stats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/client/events.h"

namespace trainyard::client {
namespace {

TEST(RunStats, WithoutEvents_AreZero) {
  RunStats stats;

  EXPECT_EQ(stats.steps(), 0u);
  EXPECT_EQ(stats.TokensPerSecond(), 0);
  EXPECT_FALSE(stats.TimeLeft(10).has_value());
}

TEST(RunStats, StepsWithoutALoss_AreNoPointsOfTheCurve) {
  RunStats stats;
  v1::Event without = StepEvent(1, 5, 0, 1.0);
  without.mutable_step()->clear_loss();
  stats.Add(without);
  EXPECT_FALSE(stats.has_loss());
  EXPECT_EQ(LossesText(stats), "");
  stats.Add(StepEvent(2, 6, 3.0, 1.0));
  without.mutable_step()->set_step(7);
  stats.Add(without);

  EXPECT_EQ(stats.steps(), 3u);
  EXPECT_EQ(LossesText(stats), "3.0000 at step 6, 3.0000 at step 6");
  EXPECT_EQ(stats.curve().size(), 1u);
}

TEST(RunStats, SumsStepsAndKeepsTheNewestOtherEvents) {
  RunStats stats;
  stats.Add(StepEvent(1, 5, 4.0, 1.0));
  stats.Add(StepEvent(2, 6, 3.0, 3.0));
  stats.Add(EvalEvent(3, 6, 3.5));
  stats.Add(CheckpointEvent(4, 6));
  v1::Event restarted = StateEvent(5, v1::JOB_STATE_RECOVERING);
  restarted.mutable_state()->set_restarts(2);
  stats.Add(restarted);

  EXPECT_EQ(stats.first_step(), 5u);
  EXPECT_EQ(stats.last_step(), 6u);
  EXPECT_EQ(stats.first_loss(), 4.0);
  EXPECT_EQ(stats.last_loss(), 3.0);
  EXPECT_EQ(stats.TokensPerSecond(), 500);
  EXPECT_EQ(stats.newest_eval()->loss(), 3.5);
  EXPECT_EQ(stats.checkpoints(), 1u);
  EXPECT_EQ(stats.restarts(), 2u);
  v1::Event answer = CheckpointEvent(6, 6);
  answer.mutable_checkpoint()->set_requested(true);
  stats.Add(answer);
  EXPECT_EQ(stats.checkpoints(), 1u) << "the checkpoint of step 6 answers a request, and is not another one";
}

TEST(RunStats, TimeLeft_FollowsTheRecentSpeed) {
  RunStats stats;
  stats.Add(StepEvent(1, 1, 5, 30.0));
  for (uint64_t step = 2; step <= 100; ++step) stats.Add(StepEvent(step, step, 5, 0.1));

  EXPECT_NEAR(absl::ToDoubleSeconds(*stats.TimeLeft(1100)), 100, 1e-6);
  EXPECT_NEAR(stats.RecentTokensPerSecond(), 10'000, 1e-6);
  EXPECT_EQ(*stats.TimeLeft(100), absl::ZeroDuration());

  for (uint64_t step = 101; step <= 200; ++step) stats.Add(StepEvent(step, step, 5, 0.2));

  EXPECT_NEAR(absl::ToDoubleSeconds(*stats.TimeLeft(1200)), 200, 1);
}

TEST(RunStats, CurveOfALongRunIsThinnedEvenly) {
  RunStats stats;
  for (uint64_t step = 1; step <= 100'000; ++step) stats.Add(StepEvent(step, step, 1.0 / static_cast<double>(step)));

  ASSERT_LE(stats.curve().size(), RunStats::kCurvePoints);
  ASSERT_GE(stats.curve().size(), RunStats::kCurvePoints / 2 - 1);
  EXPECT_EQ(stats.curve().front().first, 1u);
  for (size_t i = 2; i < stats.curve().size(); ++i) {
    EXPECT_LE(stats.curve()[i].first - stats.curve()[i - 1].first, 64u) << "point " << i;
  }
}

}  // namespace
}  // namespace trainyard::client
