// When saves begin: all ranks decide identically, from values that all have agreed on.
#include "worker/saving/save_policy.h"

#include <gtest/gtest.h>

#include "worker/saving/throttle.h"

namespace trainyard {
namespace {

using Action = SavePolicy::Action;
using Outcome = SavePolicy::Outcome;

constexpr int kWorld = 3;

TEST(SavePolicyTest, DueSave_BeginsAndEndsWhenEveryRankHasEnded) {
  SavePolicy policy(10, kWorld);
  EXPECT_EQ(policy.AtBoundary(9, false), Action::kNothing);
  ASSERT_EQ(policy.AtBoundary(10, true), Action::kBegin);
  policy.Began(10);

  EXPECT_EQ(policy.Update(11, {}), Outcome::kNothing);
  EXPECT_EQ(policy.Update(12, {.ended = 2}), Outcome::kNothing);
  EXPECT_EQ(policy.under_way(), 10u);
  EXPECT_EQ(policy.Update(13, {.ended = 3}), Outcome::kWritten);
  EXPECT_EQ(policy.under_way(), std::nullopt);
  EXPECT_EQ(policy.Update(14, {.ended = 3}), Outcome::kNothing);
  EXPECT_EQ(policy.AtBoundary(14, false), Action::kNothing);
}

TEST(SavePolicyTest, SaveDueDuringAnother_WaitsForIt_ButOnlyOnceForAHangingDisk) {
  SavePolicy policy(10, kWorld);
  policy.Began(10);
  ASSERT_EQ(policy.AtBoundary(20, true), Action::kAwait);
  policy.WaitTimedOut();
  EXPECT_EQ(policy.AtBoundary(20, true), Action::kNothing) << "the save must stay queued";
  EXPECT_EQ(policy.AtBoundary(30, true), Action::kNothing) << "the ranks must wait only once";
  EXPECT_EQ(policy.Update(33, {.ended = 3}), Outcome::kWritten);
  ASSERT_EQ(policy.AtBoundary(33, false), Action::kBegin);
  policy.Began(33);
  EXPECT_EQ(policy.AtBoundary(34, false), Action::kNothing) << "a queued save must begin once";

  // The disk keeps up again.
  EXPECT_EQ(policy.Update(36, {.ended = 3}), Outcome::kWritten);
  ASSERT_EQ(policy.AtBoundary(40, true), Action::kBegin);
  policy.Began(40);
  EXPECT_EQ(policy.AtBoundary(50, true), Action::kAwait);
}

TEST(SavePolicyTest, RequestsDuringASave_BecomeOneSaveAfterIt) {
  SavePolicy policy(0, kWorld);
  policy.Update(1, {.requests = 1});
  ASSERT_EQ(policy.AtBoundary(1, false), Action::kBegin);
  policy.Began(1);
  for (uint64_t step = 2; step < 6; ++step) {
    policy.Update(step, {.requests = step});
    EXPECT_EQ(policy.AtBoundary(step, false), Action::kNothing);
  }

  policy.Update(6, {.ended = 3, .requests = 5});
  ASSERT_EQ(policy.AtBoundary(6, false), Action::kBegin);
  policy.Began(6);
  policy.Update(7, {.ended = 3, .requests = 5});
  EXPECT_EQ(policy.AtBoundary(7, false), Action::kNothing) << "each request must act once";
}

TEST(SavePolicyTest, FailedSave_IsRetriedAfter1_2_4Steps_AndNeverLaterThanAfterEverySteps) {
  SavePolicy policy(5, kWorld);
  uint64_t step = 100;
  for (uint64_t wait : {1, 2, 4, 5, 5}) {
    policy.Began(step);
    ++step;
    ASSERT_EQ(policy.Update(step, {.ended = 3, .failed = 1}), Outcome::kFailed);
    for (uint64_t i = 0; i < wait; ++i)
      EXPECT_EQ(policy.AtBoundary(step + i, false), Action::kNothing) << "step " << i << " of a wait of " << wait;
    step += wait;
    ASSERT_EQ(policy.AtBoundary(step, false), Action::kBegin) << "after a wait of " << wait << " steps";
  }
  policy.Began(step);
  ASSERT_EQ(policy.Update(step + 1, {.ended = 3}), Outcome::kWritten);
  EXPECT_EQ(policy.AtBoundary(step + 10, false), Action::kNothing);
  policy.Began(step + 10);
  policy.Update(step + 11, {.ended = 3, .failed = 3});
  EXPECT_EQ(policy.AtBoundary(step + 12, false), Action::kBegin)
      << "failures are counted from zero after a written save";
}

TEST(SavePolicyTest, FailedSaveThatTheRanksWaitedFor_IsNotRetried) {
  SavePolicy policy(0, kWorld);
  policy.Began(7, /*waited=*/true);
  ASSERT_EQ(policy.Update(7, {.ended = 3, .failed = 1}), Outcome::kFailed);
  for (uint64_t step = 7; step < 300; ++step) EXPECT_EQ(policy.AtBoundary(step, false), Action::kNothing);
}

TEST(SavePolicyTest, SaveGivenUpByRankZero_FailsOnEveryRank) {
  SavePolicy policy(10, kWorld);
  policy.Began(10);
  EXPECT_EQ(policy.Update(15, {.ended = 2, .given_up = true}), Outcome::kFailed);
  EXPECT_EQ(policy.under_way(), std::nullopt);
  EXPECT_EQ(policy.AtBoundary(16, false), Action::kBegin);
}

// The ranks computed the terms of step 20 before they waited for the save of step 10. The sums of these terms arrive
// when the save of step 20 has already begun, and say nothing about that save.
TEST(SavePolicyTest, SumFromBeforeASaveBegan_IsIgnored) {
  SavePolicy policy(10, kWorld);
  policy.Began(10);
  ASSERT_EQ(policy.AtBoundary(20, true), Action::kAwait);
  ASSERT_EQ(policy.Update(20, {.ended = 3}), Outcome::kWritten);
  ASSERT_EQ(policy.AtBoundary(20, true), Action::kBegin);
  policy.Began(20);

  EXPECT_EQ(policy.Update(21, {.of_step = 20, .ended = 3}), Outcome::kNothing);
  EXPECT_EQ(policy.Update(21, {.of_step = 20, .ended = 2, .given_up = true}), Outcome::kNothing);
  EXPECT_EQ(policy.under_way(), 20u);
  EXPECT_EQ(policy.Update(22, {.of_step = 21, .ended = 3}), Outcome::kWritten);
}

TEST(SavePolicyTest, FailedCommit_IsRetriedWithGrowingDelays) {
  SavePolicy policy(100, kWorld);
  uint64_t step = 100, commits = 0;
  for (uint64_t wait : {1, 2, 4, 8}) {
    policy.Began(step);
    ASSERT_EQ(policy.Update(++step, {.ended = 3, .commits_failed = commits}), Outcome::kWritten);
    EXPECT_EQ(policy.AtBoundary(step, false), Action::kNothing);
    policy.Update(++step, {.commits_failed = ++commits});
    EXPECT_EQ(policy.AtBoundary(step + wait - 1, false), Action::kNothing) << "in a wait of " << wait;
    step += wait;
    ASSERT_EQ(policy.AtBoundary(step, false), Action::kBegin) << "after a wait of " << wait << " steps";
  }
}

TEST(ThrottleTest, KeepsItsRateForAnyChunkSize) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  for (uint64_t chunk : {10, 100, 1000, 5000}) {
    Throttle throttle(1000);
    absl::Time now = start;
    uint64_t sent = 0;
    while (now < start + absl::Seconds(20)) {
      now += throttle.Consume(now, chunk);
      sent += chunk;
    }
    EXPECT_NEAR(static_cast<double>(sent), 1000.0 * absl::ToDoubleSeconds(now - start),
                250 + static_cast<double>(chunk));
  }
  EXPECT_EQ(Throttle(0).Consume(start, uint64_t{1} << 60), absl::ZeroDuration());
}

TEST(ThrottleTest, UnusedBytes_AllowNoLargerBurstLater) {
  Throttle throttle(1000);
  const absl::Time start = absl::FromUnixSeconds(1000);
  throttle.Consume(start, 1);

  absl::Duration wait = throttle.Consume(start + absl::Hours(1), 1250);

  EXPECT_NEAR(absl::ToDoubleSeconds(wait), 1.0, 0.01);
}

}  // namespace
}  // namespace trainyard
