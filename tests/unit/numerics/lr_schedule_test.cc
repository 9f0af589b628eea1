#include "worker/numerics/lr_schedule.h"

#include <gtest/gtest.h>

#include <vector>

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

struct Literal {
  const char* name;
  LrSchedule schedule;
  std::vector<double> rates;  // by transformers.get_scheduler, with lr 1
};

// A schedule of 10 steps, whose first step is number 0 as in transformers: a warm-up of 3 steps and, for kWsd, a decay
// of 4 steps.
LrSchedule Zero(Kind kind, double min_ratio = 0, LrSchedule::Decay decay = LrSchedule::Decay::kCosine) {
  return {.kind = kind,
          .peak = 1,
          .warmup_steps = 3,
          .total_steps = 10,
          .min_ratio = min_ratio,
          .zero_based = true,
          .decay_steps = 4,
          .decay = decay,
          .timescale = 3};
}

TEST(LrSchedule, ZeroBased_HasTheRatesOfTransformers) {
  using Decay = LrSchedule::Decay;
  LrSchedule no_warmup = Zero(Kind::kInverseSqrt);
  no_warmup.warmup_steps = 0;
  no_warmup.timescale = 10'000;
  const Literal literals[] = {
      {"linear",
       Zero(Kind::kLinear),
       {0, 0.3333333333333333, 0.6666666666666666, 1, 0.8571428571428571, 0.7142857142857143, 0.5714285714285714,
        0.42857142857142855, 0.2857142857142857, 0.14285714285714285}},
      {"cosine",
       Zero(Kind::kCosine),
       {0, 0.3333333333333333, 0.6666666666666666, 1, 0.9504844339512095, 0.8117449009293668, 0.6112604669781572,
        0.38873953302184283, 0.18825509907063326, 0.04951556604879048}},
      {"constant_with_warmup", Zero(Kind::kConstant), {0, 0.3333333333333333, 0.6666666666666666, 1, 1, 1, 1, 1, 1, 1}},
      {"inverse_sqrt",
       Zero(Kind::kInverseSqrt),
       {0, 0.3333333333333333, 0.6666666666666666, 1, 0.8660254037844387, 0.7745966692414834, 0.7071067811865475,
        0.6546536707079771, 0.6123724356957945, 0.5773502691896258}},
      {"inverse_sqrt without warm-up", no_warmup, {1, 0.9999500037496877, 0.9999000149975006, 0.9998500337415648}},
      {"cosine_with_min_lr",
       Zero(Kind::kCosine, 0.1),
       {0, 0.3333333333333333, 0.6666666666666666, 1, 0.9554359905560885, 0.8305704108364301, 0.6501344202803414,
        0.44986557971965857, 0.26942958916356996, 0.14456400944391146}},
      {"warmup_stable_decay",
       Zero(Kind::kWsd),
       {0, 0.3333333333333333, 0.6666666666666666, 1, 1, 1, 1, 0.8535533905932737, 0.5, 0.14644660940672627}},
      {"warmup_stable_decay, linear",
       Zero(Kind::kWsd, 0.1, Decay::kLinear),
       {0.1, 0.4, 0.7, 1, 1, 1, 1, 0.775, 0.55, 0.325}},
      {"warmup_stable_decay, 1-sqrt",
       Zero(Kind::kWsd, 0.1, Decay::kSqrt),
       {0.1, 0.4, 0.7, 1, 1, 1, 1, 0.55, 0.36360389693210715, 0.22057713659400527}},
  };
  for (const Literal& literal : literals) {
    for (size_t i = 0; i < literal.rates.size(); ++i) {
      EXPECT_NEAR(LearningRateAt(literal.schedule, i + 1), literal.rates[i], 1e-15) << literal.name << ", step " << i;
    }
  }
}

TEST(LrSchedule, WarmUpStableDecay_EndsAtTheRatioOfThePeak) {
  LrSchedule schedule = ScheduleOf(Kind::kWsd);
  schedule.decay_steps = 20;

  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 5), 1.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 10), 2.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 90), 2.0);
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 100), 1.1);
  EXPECT_DOUBLE_EQ(LearningRateAt(schedule, 110), 0.2);
}

}  // namespace
}  // namespace trainyard
