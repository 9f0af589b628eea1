#include "worker/trainer/kernel_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trainyard {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

const std::vector<ProductShape> kThree = {{.rows = 256, .in = 64, .out = 64, .count = 4},
                                          {.rows = 256, .in = 512, .out = 512, .count = 4},
                                          {.rows = 256, .in = 256, .out = 512, .count = 4}};

// A CPU that executes `rate` operations per second while this thread runs, and runs the thread for the fraction `share`
// of the time, because other threads need the CPU too.
class FakeCpu {
 public:
  FakeCpu(double rate, double share) : rate_(rate), share_(share) {}

  std::vector<double> Time(const std::vector<ProductShape>& shapes, const TimingLimits& limits) {
    return TimeWithinBudget(
        shapes, limits, [this] { return now_s_; },
        [this](const ProductShape& shape) {
          timed_.push_back(shape.in * shape.out);
          const double seconds = 6 * static_cast<double>(shape.rows * shape.in * shape.out) / rate_;
          now_s_ += seconds / share_;
          return seconds;
        });
  }

  double now_s_ = 1000;
  std::vector<int64_t> timed_;

 private:
  double rate_, share_;
};

TEST(TimeWithinBudget, TimesShapesWithMostWorkFirst_ShortOnesSeveralTimes) {
  FakeCpu cpu(100e9, 1);
  const std::vector<double> seconds = cpu.Time(kThree, {.budget_s = 0.07, .short_s = 0.003, .max_tries = 3});

  EXPECT_THAT(cpu.timed_, ElementsAre(512 * 512, 256 * 512, 256 * 512, 256 * 512, 64 * 64, 64 * 64, 64 * 64));
  EXPECT_THAT(seconds, ElementsAre(DoubleNear(6 * 256 * 4096 / 100e9, 1e-9), DoubleNear(6 * 256 * 262144 / 100e9, 1e-9),
                                   DoubleNear(6 * 256 * 131072 / 100e9, 1e-9)));
}

TEST(TimeWithinBudget, AfterTheShapeWithMostWork_BeginsNothingThatWouldEndAfterTheBudget) {
  for (const double rate : {2e9, 20e9, 200e9, 2e12}) {
    for (const double share : {1.0, 0.3, 0.05}) {
      for (const double budget_s : {0.01, 0.07}) {
        FakeCpu cpu(rate, share);
        const double first_s = 6.0 * 256 * 512 * 512 / rate / share;
        const std::vector<double> seconds = cpu.Time(kThree, {.budget_s = budget_s, .short_s = 1, .max_tries = 5});

        EXPECT_LE(cpu.now_s_ - 1000, std::max(budget_s, first_s) + 1e-9)
            << "rate " << rate << ", share " << share << ", budget " << budget_s << " s";
        EXPECT_GT(seconds[1], 0);  // the shape with the most work is always timed
      }
    }
  }
}

TEST(TimeWithinBudget, SmallShapesAreStillTimedWhenALargerOneNoLongerFits) {
  FakeCpu cpu(20e9, 1);  // the shapes take 0.3, 20 and 10 ms
  const std::vector<double> seconds = cpu.Time(kThree, {.budget_s = 0.025, .short_s = 0.001, .max_tries = 3});

  EXPECT_THAT(cpu.timed_, ElementsAre(512 * 512, 64 * 64, 64 * 64, 64 * 64));
  EXPECT_EQ(seconds[2], 0);
}

TEST(SpeedsOfAll, WeightsShapesByWork_AndGivesAnUntimedShapeTheSpeedsOfTheMostSimilar) {
  const double large = 6.0 * 256 * 512 * 512, small = 6.0 * 256 * 64 * 64;
  // With and without the lever, which makes MKL use other kernels (mkl_lever.h), the large shape runs at 200 and 100
  // GFLOP/s, and the small one at 10 and 20. The third shape was not timed with the lever; it is most similar to the
  // large one.
  const TwoSpeeds speeds = SpeedsOfAll(kThree, {small / 10e9, large / 200e9, 0}, {small / 20e9, large / 100e9, 1});

  EXPECT_THAT(speeds.with_lever, DoubleNear(4 * (1.5 * large + small) / (4 * (1.5 * large / 200 + small / 10)), 1e-6));
  EXPECT_THAT(speeds.without, DoubleNear(4 * (1.5 * large + small) / (4 * (1.5 * large / 100 + small / 20)), 1e-6));
  // No shape was timed both with and without the lever.
  EXPECT_EQ(SpeedsOfAll(kThree, {1, 0, 0}, {0, 1, 0}).with_lever, 0);
}

}  // namespace
}  // namespace trainyard
