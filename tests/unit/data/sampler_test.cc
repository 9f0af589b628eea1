#include "worker/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace trainyard {
namespace {

std::vector<uint64_t> Epoch(const Sampler& sampler, uint64_t epoch) {
  std::vector<uint64_t> samples;
  for (uint64_t i = 0; i < sampler.num_samples(); ++i) samples.push_back(sampler.At(epoch * sampler.num_samples() + i));
  return samples;
}

TEST(Sampler, EveryEpochHoldsEverySampleOnce) {
  for (uint64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    Sampler sampler(size, 7);
    for (uint64_t epoch : {0, 1, 9}) {
      std::vector<uint64_t> samples = Epoch(sampler, epoch);
      std::sort(samples.begin(), samples.end());
      for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(samples[i], i) << size << " samples, epoch " << epoch;
    }
  }
}

TEST(Sampler, TheOrderDependsOnSeedAndEpochAlone) {
  EXPECT_EQ(Epoch(Sampler(1000, 1), 3), Epoch(Sampler(1000, 1), 3));
  EXPECT_NE(Epoch(Sampler(1000, 1), 3), Epoch(Sampler(1000, 2), 3));
  EXPECT_NE(Epoch(Sampler(1000, 1), 3), Epoch(Sampler(1000, 1), 4));
}

// A change of the order would change every resumed job, so a few of its elements are fixed here.
TEST(Sampler, TheOrderIsThatOfEarlierReleases) {
  Sampler sampler(1'000'000, 1337);
  std::vector<uint64_t> samples;
  for (uint64_t position : {0, 1, 2, 999'999, 1'000'000}) samples.push_back(sampler.At(position));
  EXPECT_EQ(samples, (std::vector<uint64_t>{796509, 353537, 408344, 613333, 192444}));
}

// Neighbours in the order are as far apart in the text as random samples: a third of its length on average.
TEST(Sampler, ShufflesWell) {
  constexpr uint64_t kSize = 10'000;
  Sampler sampler(kSize, 5);
  double distance = 0, correlation = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i) {
    double sample = static_cast<double>(sampler.At(i)), next = static_cast<double>(sampler.At(i + 1));
    distance += std::abs(sample - next) / kSize;
    correlation += (sample / kSize - 0.5) * (static_cast<double>(i) / kSize - 0.5);
  }
  EXPECT_NEAR(distance / kSize, 1.0 / 3, 0.02);
  EXPECT_NEAR(correlation / kSize * 12, 0, 0.05);
}

TEST(Sampler, AcceptsDistantPositions) {
  Sampler sampler(uint64_t{1} << 40, 3);
  EXPECT_LT(sampler.At((uint64_t{1} << 52) + 12345), uint64_t{1} << 40);
}

}  // namespace
}  // namespace trainyard
