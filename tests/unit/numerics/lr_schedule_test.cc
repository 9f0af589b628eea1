#include "worker/numerics/lr_schedule.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

using Kind = LrSchedule::Kind;

LrSchedule ScheduleOf(Kind kind) {
  return {.kind = kind, .peak = 2.0, .warmup_steps = 10, .total_steps = 110, .min_ratio = 0.1};
}

TEST(LrSchedule, RisesLinearlyToThePeak) {
  for (Kind kind : {Kind::kCosine, Kind::kLinear, Kind::kConstant}) {
    EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(kind), 1), 0.2);
    EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(kind), 5), 1.0);
    EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(kind), 10), 2.0);
  }
}

TEST(LrSchedule, EndsAtTheRatioOfThePeak) {
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kCosine), 110), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kLinear), 110), 0.2);
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kConstant), 110), 2.0);
}

TEST(LrSchedule, IsHalfWayDownAtHalfTime) {
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kCosine), 60), 1.1);
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kLinear), 60), 1.1);
}

TEST(LrSchedule, FallsAtEveryStep) {
  for (Kind kind : {Kind::kCosine, Kind::kLinear}) {
    for (uint64_t step = 11; step <= 110; ++step) {
      EXPECT_LT(LearningRateAt(ScheduleOf(kind), step), LearningRateAt(ScheduleOf(kind), step - 1));
    }
  }
}

TEST(LrSchedule, WithoutWarmUpStartsAtThePeak) {
  LrSchedule schedule = ScheduleOf(Kind::kCosine);
  schedule.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 1), 2.0);
}

TEST(LrSchedule, StaysAtTheEndBeyondTheLastStep) {
  EXPECT_DOUBLE_EQ(LearningRateAt(ScheduleOf(Kind::kCosine), 500), 0.2);
}

TEST(LrSchedule, WarmUpLongerThanTheJob_NeverReachesThePeak) {
  LrSchedule schedule = ScheduleOf(Kind::kCosine);
  schedule.warmup_steps = 1000;
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 110), 0.22);
  schedule.warmup_steps = 110;
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 110), 2.0);
}

TEST(LrSchedule, JobOfOneStep_UsesThePeak) {
  EXPECT_DOUBLE_EQ(LearningRateAt({.peak = 2.0, .total_steps = 1}, 1), 2.0);
}

}  // namespace
}  // namespace trainyard
