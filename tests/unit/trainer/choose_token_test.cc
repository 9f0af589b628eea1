#include "worker/trainer/choose_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace trainyard {
namespace {

using testing::HasSubstr;

// The share of draws that choose each token, with evenly spaced numbers instead of random ones.
template <typename T>
std::map<int64_t, double> SharesOf(const std::vector<T>& scores, const SamplingPolicy& policy) {
  constexpr int kDraws = 10000;
  std::map<int64_t, double> shares;
  for (int i = 0; i < kDraws; ++i) {
    const auto token = ChooseToken(absl::MakeConstSpan(scores), policy, (i + 0.5) / kDraws);
    EXPECT_TRUE(token.ok()) << token.status();
    shares[*token] += 1.0 / kDraws;
  }
  return shares;
}

// Probabilities 0.1, 0.5, 0.3, 0.06, 0.04 at temperature 1.
std::vector<float> FiveScores() {
  std::vector<float> scores;
  for (double p : {0.1, 0.5, 0.3, 0.06, 0.04}) scores.push_back(static_cast<float>(std::log(p) + 3));
  return scores;
}

void ExpectShares(const std::map<int64_t, double>& found, const std::map<int64_t, double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [token, share] : expected) {
    ASSERT_TRUE(found.contains(token)) << token;
    EXPECT_NEAR(found.at(token), share, 1e-3) << "token " << token;
  }
}

TEST(ChooseToken, WithoutLimits_TokensHaveTheirProbabilities) {
  ExpectShares(SharesOf(FiveScores(), {}), {{0, 0.1}, {1, 0.5}, {2, 0.3}, {3, 0.06}, {4, 0.04}});
  const std::vector<float> scores = FiveScores();
  ExpectShares(SharesOf(std::vector<double>(scores.begin(), scores.end()), {}),
               {{0, 0.1}, {1, 0.5}, {2, 0.3}, {3, 0.06}, {4, 0.04}});
}

TEST(ChooseToken, TemperatureDividesTheScores) {
  const double total = 0.01 + 0.25 + 0.09 + 0.0036 + 0.0016;
  ExpectShares(SharesOf(FiveScores(), {.temperature = 0.5}),
               {{0, 0.01 / total}, {1, 0.25 / total}, {2, 0.09 / total}, {3, 0.0036 / total}, {4, 0.0016 / total}});
}

TEST(ChooseToken, TemperatureZero_ChoosesTheFirstOfTheHighest) {
  const std::vector<float> scores = {1, 3, 2, 3};
  for (double uniform : {0.0, 0.5, 0.999}) {
    EXPECT_EQ(*ChooseToken(absl::MakeConstSpan(scores), {.temperature = 0}, uniform), 1);
  }
  ExpectShares(SharesOf(scores, {.temperature = 1e-9}), {{1, 0.5}, {3, 0.5}});
}

TEST(ChooseToken, TopK_ExcludesAllLowerScores_AndIncludesEqualScores) {
  ExpectShares(SharesOf(FiveScores(), {.top_k = 2}), {{1, 0.5 / 0.8}, {2, 0.3 / 0.8}});
  ExpectShares(SharesOf(FiveScores(), {.top_k = 1}), {{1, 1}});
  ExpectShares(SharesOf(FiveScores(), {.top_k = 5}), SharesOf(FiveScores(), {}));
  ExpectShares(SharesOf(FiveScores(), {.top_k = 500}), SharesOf(FiveScores(), {}));
  ExpectShares(SharesOf(std::vector<float>{2, 1, 2, 2}, {.top_k = 2}), {{0, 1.0 / 3}, {2, 1.0 / 3}, {3, 1.0 / 3}});
}

TEST(ChooseToken, TopP_KeepsTheTokenThatReachesTheProbability) {
  ExpectShares(SharesOf(FiveScores(), {.top_p = 0.45}), {{1, 1}});
  ExpectShares(SharesOf(FiveScores(), {.top_p = 0.55}), {{1, 0.5 / 0.8}, {2, 0.3 / 0.8}});
  ExpectShares(SharesOf(FiveScores(), {.top_p = 0.85}), {{0, 0.1 / 0.9}, {1, 0.5 / 0.9}, {2, 0.3 / 0.9}});
  ExpectShares(SharesOf(FiveScores(), {.top_p = 1e-9}), {{1, 1}});
}

TEST(ChooseToken, TopP_AppliesToWhatTemperatureAndTopKLeave) {
  // Of 0.5, 0.3 and 0.1, the first two have 8/9 of the probability.
  ExpectShares(SharesOf(FiveScores(), {.top_k = 3, .top_p = 0.88}), {{1, 0.5 / 0.8}, {2, 0.3 / 0.8}});
  // At temperature 0.5, the most likely token alone has 0.70.
  ExpectShares(SharesOf(FiveScores(), {.temperature = 0.5, .top_p = 0.69}), {{1, 1}});
}

TEST(ChooseToken, LargeVocabulary_GivesTheTokensOfAFullSort) {
  std::vector<float> scores;
  for (int i = 0; i < 50257; ++i) scores.push_back(static_cast<float>((i * 7919 % 50257) / 5000.0));
  std::vector<int64_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
  const std::vector<int64_t> first(order.begin(), order.begin() + 40);
  for (int i = 0; i < 200; ++i) {
    EXPECT_THAT(first, testing::Contains(*ChooseToken(absl::MakeConstSpan(scores), {.top_k = 40}, i / 200.0)));
  }
}

TEST(ChooseToken, TokensThatAreImpossible_AreNeverChosen) {
  const float never = -std::numeric_limits<float>::infinity();
  ExpectShares(SharesOf(std::vector<float>{never, 0, never, 0}, {}), {{1, 0.5}, {3, 0.5}});
  ExpectShares(SharesOf(std::vector<float>{never, 0, never, never}, {.top_k = 3}), {{1, 1}});
}

TEST(ChooseToken, ScoresThatAreNotNumbers_AreRefused) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> scores = {1, bad, 2};
    const auto token = ChooseToken(absl::MakeConstSpan(scores), {}, 0.5);
    ASSERT_FALSE(token.ok());
    EXPECT_THAT(std::string(token.status().message()), HasSubstr("the weights are damaged, or a value overflows"));
  }
}

}  // namespace
}  // namespace trainyard
