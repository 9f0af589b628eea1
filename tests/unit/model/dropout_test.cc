#include "worker/model/ops/dropout.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/model/gradients.h"
#include "worker/model/ops/attention.h"
#include "worker/model/ops/dropout_kernel.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

constexpr DropoutSite kSite = DropoutSite::kMlpOutput;

UnitDropout DropoutOfRate(double rate, uint64_t first_sample = 0) {
  return {.rate = rate, .key = {.seed = 1337, .step = 5, .first_sample = first_sample}, .unit = 3};
}

// 1 where an element of a tensor of this shape is kept, else 0.
at::Tensor KeptOf(at::IntArrayRef sizes, const UnitDropout& dropout, DropoutSite site = kSite,
                  const SampleSlice& slice = {}) {
  return (Drop(at::ones(sizes, at::kDouble), dropout, site, slice) != 0).to(at::kDouble);
}

// The sum over all counts of (count - expected value)^2 / variance.
double ChiSquare(const at::Tensor& counts, int64_t trials, double keep) {
  const double expected = static_cast<double>(trials) * keep;
  return ((counts - expected).square() / (expected * (1 - keep))).sum().item<double>();
}

std::array<uint32_t, 4> WordsOf(const PhiloxBits& bits, size_t lane) {
  return {bits[lane], bits[16 + lane], bits[32 + lane], bits[48 + lane]};
}

// The known answers of philox4x32-10 in the file kat_vectors of Random123, the library of the authors of Philox.
TEST(Philox, HasThePublishedResults) {
  PhiloxBits bits;

  RunPhilox({0, 0}, {0, 0, 0, 0}, bits);
  EXPECT_EQ(WordsOf(bits, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  RunPhilox({~0u, ~0u}, {~0u - 15, ~0u, ~0u, ~0u}, bits);
  EXPECT_EQ(WordsOf(bits, 15), (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  RunPhilox({0xa4093822, 0x299f31d0}, {0x243f6a80, 0x85a308d3, 0x13198a2e, 0x03707344}, bits);
  EXPECT_EQ(WordsOf(bits, 8), (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

class DropoutRate : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(, DropoutRate, testing::Values(0.01, 0.1, 0.5, 0.9),
                         [](const auto& info) { return std::to_string(static_cast<int>(info.param * 100)); });

TEST_P(DropoutRate, IsTheShareOfDroppedElements) {
  constexpr int64_t kElements = int64_t{1} << 20;

  const double dropped = kElements - KeptOf({4, kElements / 4}, DropoutOfRate(GetParam())).sum().item<double>();

  const double deviation = std::sqrt(kElements * GetParam() * (1 - GetParam()));
  EXPECT_NEAR(dropped, kElements * GetParam(), 4 * deviation);
}

TEST_P(DropoutRate, IsTheSameAtEachPositionAndInEachSample) {
  constexpr int64_t kSamples = 4000, kPositions = 3000;

  const at::Tensor kept = KeptOf({kSamples, kPositions}, DropoutOfRate(GetParam()));

  // The sum of n squares has the mean n and the standard deviation sqrt(2 n).
  const double keep = 1 - GetParam();
  EXPECT_NEAR(ChiSquare(kept.sum(0), kSamples, keep), kPositions, 4 * std::sqrt(2.0 * kPositions));
  EXPECT_NEAR(ChiSquare(kept.sum(1), kPositions, keep), kSamples, 4 * std::sqrt(2.0 * kSamples));
}

TEST_P(DropoutRate, KeepsTheMean) {
  const at::Tensor y = Drop(at::ones({1, 1 << 20}, at::kDouble), DropoutOfRate(GetParam()), kSite);
  EXPECT_NEAR(y.mean().item<double>(), 1, 4 * std::sqrt(GetParam() / (1 - GetParam())) / 1024);
}

// The pairs are elements at several distances; at the smallest distances both come from words of one Philox counter.
TEST(Dropout, OfTwoElementsIsIndependent) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const at::Tensor kept = KeptOf({1, kElements}, DropoutOfRate(0.5))[0] * 2 - 1;
  for (int64_t distance : {1, 2, 4, 16, 32, 48, 64, 4096}) {
    const int64_t size = kElements - distance;
    const double correlation = (kept.narrow(0, 0, size) * kept.narrow(0, distance, size)).sum().item<double>();
    EXPECT_LT(std::abs(correlation), 4 * std::sqrt(size)) << "distance " << distance;
  }
}

TEST(Dropout, DoesNotDependOnTheSizeOfMicroBatches) {
  const at::Tensor whole = KeptOf({4, 5, 13}, DropoutOfRate(0.3, /*first_sample=*/8));

  for (int64_t micro : {1, 2}) {
    for (int64_t first = 0; first < 4; first += micro) {
      const at::Tensor part = KeptOf({micro, 5, 13}, DropoutOfRate(0.3, static_cast<uint64_t>(8 + first)));
      EXPECT_TRUE(part.equal(whole.narrow(0, first, micro))) << micro << " samples from " << first;
    }
  }
}

TEST(Dropout, OfASlice_IsTheSliceOfTheWhole) {
  // Weights [heads, tokens, tokens]: heads 2 and 3 of 6.
  const at::Tensor weights = KeptOf({3, 6, 7, 7}, DropoutOfRate(0.4));
  EXPECT_TRUE(KeptOf({3, 2, 7, 7}, DropoutOfRate(0.4), kSite, {.first = 2 * 7 * 7}).equal(weights.narrow(1, 2, 2)));
  // [tokens, width]: tokens from 4; columns from 30; both.
  const at::Tensor x = KeptOf({3, 9, 100}, DropoutOfRate(0.4));
  EXPECT_TRUE(KeptOf({3, 5, 100}, DropoutOfRate(0.4), kSite, {.first = 400}).equal(x.narrow(1, 4, 5)));
  EXPECT_TRUE(
      KeptOf({3, 9, 70}, DropoutOfRate(0.4), kSite, {.first = 30, .row_stride = 100}).equal(x.narrow(2, 30, 70)));
  EXPECT_TRUE(KeptOf({3, 5, 70}, DropoutOfRate(0.4), kSite, {.first = 430, .row_stride = 100})
                  .equal(x.narrow(1, 4, 5).narrow(2, 30, 70)));
  // The slice begins with row 6 of the first sample and ends with row 2 of the third one.
  const SampleSlice rows{.first = 600, .sample_size = 900};
  const at::Tensor expected = x.view({27, 100}).narrow(0, 6, 15);
  EXPECT_TRUE(KeptOf({15, 100}, DropoutOfRate(0.4), kSite, rows).equal(expected));
  const at::Tensor ones = at::ones({15, 100}, at::kDouble);
  EXPECT_TRUE(DropBy(DropoutKernel::kLibTorch, ones, DropoutOfRate(0.4), kSite, rows).ne(0).equal(expected.ne(0)));
}

TEST(Dropout, BackwardIsTheProductWithTheScaledMask) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 6, 35}, at::kDouble), weights = at::randn({2, 6, 35}, at::kDouble);
  const SampleSlice slice{.first = 5, .row_stride = 40};
  const at::Tensor mask = KeptOf(x.sizes(), DropoutOfRate(0.2), kSite, slice) / 0.8;
  for (DropoutKernel kernel : {DropoutKernel::kOwn, DropoutKernel::kLibTorch}) {
    const at::Tensor leaf = Leaf(x);

    const auto found = WithGradients(DropBy(kernel, leaf, DropoutOfRate(0.2), kSite, slice), weights, {leaf});

    EXPECT_LT(RelativeDifference(found[0], x * mask), 1e-15);
    EXPECT_LT(RelativeDifference(found[1], weights * mask), 1e-15);
    // The derivative along a random direction, computed numerically.
    const at::Tensor direction = at::randn(x.sizes(), at::kDouble);
    const auto value = [&](const at::Tensor& at) {
      return (DropBy(kernel, at, DropoutOfRate(0.2), kSite, slice) * weights).sum();
    };
    const at::Tensor slope = (value(x + direction * 1e-4) - value(x - direction * 1e-4)) / 2e-4;
    EXPECT_NEAR(slope.item<double>(), (found[1] * direction).sum().item<double>(), 1e-8);
  }
}

TEST(Dropout, DependsOnEveryPartOfItsKey) {
  const UnitDropout dropout = DropoutOfRate(0.5);
  const at::Tensor kept = KeptOf({2, 64}, dropout);
  std::vector<UnitDropout> others(6, dropout);
  others[0].key.seed = 1338;
  others[1].key.seed += uint64_t{1} << 32;
  others[2].key.step = 6;
  others[3].key.step += uint64_t{1} << 32;
  others[4].key.first_sample = 2;
  others[5].unit = 4;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_FALSE(KeptOf({2, 64}, others[i]).equal(kept)) << "key " << i;
  EXPECT_FALSE(KeptOf({2, 64}, dropout, DropoutSite::kAttentionOutput).equal(kept));
  EXPECT_FALSE(KeptOf({2, 64}, dropout, kSite, {.first = int64_t{64} << 32}).equal(kept));
  EXPECT_TRUE(KeptOf({2, 64}, dropout).equal(kept));
}

TEST(Dropout, OfRateZero_ReturnsItsInput) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_TRUE(Drop(x, DropoutOfRate(0), kSite).is_same(x));
  EXPECT_TRUE(Drop(x, DropoutOf(std::nullopt, 1, 0.5), kSite).is_same(x));
}

TEST(Dropout, HasTheMaskOfFp64InEveryType_AndRoundsOnce) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 3, 77}), kept = KeptOf(x.sizes(), DropoutOfRate(0.1));
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor of_type = x.to(type);
    const at::Tensor expected = (of_type.to(at::kFloat) * kept.to(at::kFloat) * (1 / 0.9f)).to(type);
    EXPECT_TRUE(Drop(of_type, DropoutOfRate(0.1), kSite).equal(expected)) << type;
  }
}

TEST(Dropout, OfLibTorch_HasTheBitsOfTheKernel_ForAnyNumberOfThreads) {
  at::manual_seed(1);
  UnitDropout large = DropoutOfRate(0.3, (1 << 24) - 3);
  large.key.seed = 0xfedcba9876543210;
  large.key.step = (uint64_t{1} << 40) - 1;
  large.unit = (1 << 16) - 1;
  const SampleSlice far{.first = (int64_t{1} << 41) + 17, .row_stride = 300};
  for (at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{3, 5, 7}, {3, 40, 290}, {3}, {2, 2, 130, 130}}) {
      for (const UnitDropout& dropout : {DropoutOfRate(0.3), large}) {
        const at::Tensor x = at::randn(sizes).to(type);
        const SampleSlice slice = dropout.unit == large.unit ? far : SampleSlice{};

        const at::Tensor by_libtorch = DropBy(DropoutKernel::kLibTorch, x, dropout, kSite, slice);

        EXPECT_TRUE(Drop(x, dropout, kSite, slice).equal(by_libtorch)) << type << at::IntArrayRef(sizes);
        at::set_num_threads(2);
        EXPECT_TRUE(Drop(x, dropout, kSite, slice).equal(by_libtorch)) << type << at::IntArrayRef(sizes);
        at::set_num_threads(1);
      }
    }
  }
}

TEST(Dropout, OfNumbersThatAreTooLarge_IsRefused) {
  const auto refusal = [](const UnitDropout& dropout, const SampleSlice& slice = {}) -> std::string {
    try {
      Drop(at::ones({2, 3}), dropout, kSite, slice);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  UnitDropout step = DropoutOfRate(0.1), unit = DropoutOfRate(0.1);
  step.key.step = uint64_t{1} << 40;
  unit.unit = 1 << 16;

  EXPECT_THAT(refusal(step), HasSubstr("dropout of step 1099511627776: must be below 2^40"));
  EXPECT_THAT(refusal(unit), HasSubstr("dropout of unit 65536: must be below 2^16"));
  EXPECT_THAT(refusal(DropoutOfRate(1)), HasSubstr("must be in [0, 1), found 1"));
  EXPECT_THAT(refusal(DropoutOfRate(0.1, (1 << 24) - 1)), HasSubstr("dropout of sample 16777216 of a step"));
  EXPECT_THAT(refusal(DropoutOfRate(0.1), {.first = int64_t{1} << 42}), HasSubstr("must be in [0, 2^42)"));
  EXPECT_THAT(refusal(DropoutOfRate(0.1), {.first = -1}), HasSubstr("must be in [0, 2^42)"));
  EXPECT_THROW(Drop(at::ones({2, 3}, at::kInt), DropoutOfRate(0.1), kSite), std::exception);
}

TEST(AttentionDropoutTest, ASubsetOfTheHeads_DropsTheSameProbabilitiesAsAllHeads) {
  at::manual_seed(1);
  constexpr int64_t kTokens = 11, kHeads = 4, kDepth = 6;
  const UnitDropout dropout = DropoutOfRate(0.3, /*first_sample=*/2);
  const at::Tensor qkv = at::randn({2, kTokens, 3, kHeads, kDepth}, at::kDouble);
  const at::Tensor starts = at::arange(kTokens, at::kLong).div(5, "floor").mul(5).expand({2, kTokens});
  const at::Tensor q = qkv.select(2, 0).transpose(1, 2), k = qkv.select(2, 1).transpose(1, 2),
                   v = qkv.select(2, 2).transpose(1, 2);
  const at::Tensor kept = KeptOf({2, kHeads, kTokens, kTokens}, dropout, DropoutSite::kAttentionWeights) / 0.7;
  const at::Tensor columns = at::arange(kTokens, at::kLong), rows = columns.unsqueeze(1);
  for (const at::Tensor& documents : {at::Tensor(), starts}) {
    at::Tensor hidden = columns > rows;
    if (documents.defined()) hidden = hidden.logical_or(columns < documents[0].unsqueeze(1));
    const at::Tensor scores = at::matmul(q, k.transpose(-2, -1)) / std::sqrt(6.0);
    const at::Tensor weights = scores.masked_fill(hidden, -INFINITY).softmax(-1) * kept;
    const at::Tensor expected = at::matmul(weights, v).transpose(1, 2);

    const at::Tensor whole = CausalAttention(qkv.reshape({2, kTokens, -1}), kHeads, {.dropout = dropout}, documents);
    const at::Tensor last = CausalAttention(qkv.narrow(3, 1, 3).reshape({2, kTokens, -1}), 3,
                                            {.dropout = dropout, .first_head = 1}, documents);

    EXPECT_LT(RelativeDifference(whole.view(expected.sizes()), expected), 1e-14);
    EXPECT_LT(RelativeDifference(last.view({2, kTokens, 3, kDepth}), expected.narrow(2, 1, 3)), 1e-14);
  }
}

}  // namespace
}  // namespace trainyard
