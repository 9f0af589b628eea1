// The order of the sources in a blend.
#include "worker/data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace trainyard {
namespace {

// The rule in its simplest form, for integer weights: sample i comes from the source with the largest deficit, weight x
// i - total x count, and from the first of them in a tie.
std::vector<size_t> PlainOrder(const std::vector<int64_t>& weights, int64_t num_samples) {
  const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> counts(weights.size());
  std::vector<size_t> order;
  for (int64_t i = 0; i < num_samples; ++i) {
    size_t chosen = 0;
    for (size_t k = 1; k < weights.size(); ++k) {
      const auto deficit = [&](size_t s) { return weights[s] * std::max<int64_t>(i, 1) - total * counts[s]; };
      if (deficit(k) > deficit(chosen)) chosen = k;
    }
    ++counts[chosen];
    order.push_back(chosen);
  }
  return order;
}

TEST(BlendTest, EachSampleComesFromTheSourceWithTheLargestDeficit) {
  for (const std::vector<int64_t>& weights :
       {std::vector<int64_t>{1}, {1, 1}, {7, 3}, {3, 7}, {5, 3, 1}, {1, 50, 49}, {2, 3, 5, 7, 11, 13}}) {
    const int64_t total = std::accumulate(weights.begin(), weights.end(), int64_t{0});
    std::vector<double> fractions(weights.begin(), weights.end());
    for (double& fraction : fractions) fraction *= 0.1;

    const Blend blend(fractions);

    int64_t divisor = total;
    for (const int64_t weight : weights) divisor = std::gcd(divisor, weight);
    ASSERT_EQ(blend.period(), static_cast<uint64_t>(total / divisor));
    const std::vector<size_t> expected = PlainOrder(weights, static_cast<int64_t>(blend.period()));
    for (uint64_t i = 0; i < 3 * blend.period(); ++i) {
      EXPECT_EQ(blend.At(i).source, expected[i % expected.size()]) << "sample " << i << " of " << weights.size();
    }
  }
}

TEST(BlendTest, NoSourceIsTwoSamplesShort_AndTheSamplesOfEachAreNumberedInOrder) {
  const std::vector<double> weights = {0.37, 0.11, 1e-3, 2.5, 0, 0.6180339887};
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Blend blend(weights);
  std::vector<uint64_t> counts(weights.size());
  for (uint64_t i = 0; i < 600'000; ++i) {
    const auto [source, number] = blend.At(i);
    ASSERT_EQ(number, counts[source]) << "sample " << i;
    ++counts[source];
    for (size_t k = 0; i % 97 == 0 && k < weights.size(); ++k) {
      const double share = weights[k] / total * static_cast<double>(i + 1);
      // The rounding of the shares adds up over periods.
      ASSERT_GT(static_cast<double>(counts[k]), share - 2 - 4e-6 * static_cast<double>(i)) << "source " << k;
    }
  }
  for (size_t k = 0; k < weights.size(); ++k) EXPECT_EQ(blend.CountOf(k, 600'000), counts[k]) << "source " << k;
  EXPECT_EQ(counts[4], 0u) << "source 4 has weight 0";
}

TEST(BlendTest, SampleAtAFarPosition_IsFound) {
  const Blend blend({0.7, 0.2, 0.1});
  const uint64_t far = uint64_t{1} << 60;
  const auto [source, number] = blend.At(far);
  EXPECT_EQ(number, blend.CountOf(source, far));
  EXPECT_NEAR(static_cast<double>(blend.CountOf(0, far)), 0.7 * static_cast<double>(far), 1e4);
}

TEST(BlendTest, VeryDifferentWeights_LeaveSamplesToEverySource) {
  EXPECT_GE(Blend({1e9, 1e-9}).CountOf(1, 1 << 20), 1u);
  EXPECT_EQ(Blend({0, 3}).At(5).source, 1u);
  EXPECT_EQ(Blend({5e-324, 0}).At(5).source, 0u) << "the smallest number above 0";
  std::vector<double> many(4096);
  for (size_t i = 0; i < many.size(); ++i) many[i] = std::sqrt(static_cast<double>(i + 1));
  const Blend blend(many);
  for (size_t i = 0; i < many.size(); ++i) EXPECT_GE(blend.CountOf(i, blend.period()), 1u);
}

}  // namespace
}  // namespace trainyard
