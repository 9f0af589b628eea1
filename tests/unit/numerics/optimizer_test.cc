// AdamW over flat ranges compared with its formula, in every type and layout; and the norm and scale of gradients.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "worker/numerics/adamw.h"
#include "worker/numerics/adamw_kernel.h"
#include "worker/numerics/element_numbers.h"
#include "worker/numerics/gradient_norm.h"
#include "worker/numerics/sixteen_bit.h"

namespace trainyard {
namespace {

// One element that is updated by the formula.
struct Scalar {
  double w, m = 0, v = 0;
  void Step(double g, double lr, double decay, int t) {
    w *= 1 - lr * decay;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    w -= lr * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.95, t))) + 1e-8);
  }
};

void ExpectFollowsTheFormula(at::ScalarType type, double tolerance) {
  at::Tensor flat = at::linspace(-1, 1, 100, type), gradients = at::linspace(3, -2, 100, type);
  std::vector<Scalar> expected;
  for (int i = 0; i < 100; ++i) expected.push_back({.w = flat[i].item<double>()});
  at::Tensor original = gradients.clone();
  AdamW optimizer({},
                  {{.parameters = flat.narrow(0, 0, 60), .gradients = gradients.narrow(0, 0, 60), .decays = true},
                   {.parameters = flat.narrow(0, 60, 40), .gradients = gradients.narrow(0, 60, 40), .decays = false}});

  for (int t = 1; t <= 5; ++t) {
    gradients.copy_(original);
    optimizer.Step(/*lr=*/0.01, /*gradient_scale=*/0.25);
    for (int i = 0; i < 100; ++i) {
      expected[i].Step(original[i].item<double>() * 0.25, 0.01, i < 60 ? 0.1 : 0, t);
    }
  }

  EXPECT_EQ(optimizer.num_steps(), 5u);
  for (int i = 0; i < 100; ++i) EXPECT_NEAR(flat[i].item<double>(), expected[i].w, tolerance) << "element " << i;
  EXPECT_NEAR(optimizer.exp_avg()[1][39].item<double>(), expected[99].m, tolerance);
  EXPECT_NEAR(optimizer.exp_avg_sq()[0][0].item<double>(), expected[0].v, tolerance);
}

TEST(AdamW, FollowsTheFormulaInFp64) { ExpectFollowsTheFormula(at::kDouble, 1e-14); }
TEST(AdamW, FollowsTheFormulaInFp32) { ExpectFollowsTheFormula(at::kFloat, 1e-6); }

TEST(AdamW, RestoredState_ContinuesBitForBit) {
  auto make = [](const at::Tensor& flat, const at::Tensor& gradients) {
    return AdamW({}, {{.parameters = flat, .gradients = gradients, .decays = true}});
  };
  at::Tensor flat = at::linspace(-1, 1, 1000), gradients = at::linspace(3, -2, 1000);
  AdamW first = make(flat, gradients);
  first.Step(0.01, 1);

  at::Tensor resumed_flat = flat.clone(), resumed_gradients = gradients.clone();
  AdamW resumed = make(resumed_flat, resumed_gradients);
  resumed.exp_avg()[0].copy_(first.exp_avg()[0]);
  resumed.exp_avg_sq()[0].copy_(first.exp_avg_sq()[0]);
  resumed.set_num_steps(1);
  first.Step(0.01, 1);
  resumed.Step(0.01, 1);

  EXPECT_TRUE(resumed_flat.equal(flat));
}

// Elements after updates: masters, moments, and the weights for forward.
struct Outcome {
  at::Tensor w, m, v, weights;
  bool operator==(const Outcome& other) const {
    return w.equal(other.w) && m.equal(other.m) && v.equal(other.v) && weights.equal(other.weights);
  }
};

struct Types {
  at::ScalarType master = at::kFloat, state = at::kFloat, gradient = at::kFloat, weight = at::kFloat;
};

// Returns `size` elements of a parameter from `first_element` on after three updates, in one range or split at `cuts`.
Outcome Updated(int64_t size, std::vector<int64_t> cuts, const Types& types, uint64_t seed = 7,
                int64_t first_element = 0) {
  Outcome outcome{.w = at::linspace(-2, 3, size, at::kDouble).to(types.master),
                  .m = at::full({size}, 0.0, types.state),
                  .v = at::full({size}, 0.0, types.state),
                  .weights = at::full({size}, 0.0, types.weight)};
  at::Tensor gradients = at::linspace(3, -2, size, at::kDouble).to(types.gradient);
  std::vector<AdamW::Range> ranges;
  cuts.push_back(size);
  int64_t first = 0;
  for (int64_t cut : cuts) {
    auto part = [&](const at::Tensor& t) { return t.narrow(0, first, cut - first); };
    ranges.push_back(
        {.parameters = part(outcome.w),
         .gradients = part(gradients),
         .decays = true,
         .exp_avg = part(outcome.m),
         .exp_avg_sq = part(outcome.v),
         .weights = part(outcome.weights),
         .spans = {{.offset = 0, .count = cut - first, .parameter = 5, .first_element = first_element + first}}});
    first = cut;
  }
  AdamW optimizer({.seed = seed}, std::move(ranges));
  for (int step = 0; step < 3; ++step) optimizer.Step(0.01, 0.25);
  return outcome;
}

constexpr int64_t kOddSize = 100'003;

TEST(AdamW, Shards_HaveTheBitsOfTheWholeInEveryType) {
  for (const Types& types :
       {Types{}, Types{.master = at::kDouble, .state = at::kDouble, .gradient = at::kDouble, .weight = at::kDouble},
        Types{.gradient = at::kBFloat16, .weight = at::kBFloat16}, Types{.gradient = at::kHalf, .weight = at::kHalf},
        Types{.master = at::kBFloat16, .weight = at::kBFloat16},
        Types{.master = at::kBFloat16, .state = at::kBFloat16, .weight = at::kBFloat16}}) {
    Outcome whole = Updated(kOddSize, {}, types);
    EXPECT_TRUE(whole == Updated(kOddSize, {1, 18, 513, 70'001}, types)) << types.master << " " << types.gradient;
  }
}

TEST(AdamW, NumberOfThreads_ChangesNoBit) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  Outcome with_one_thread = Updated(kOddSize, {}, {.weight = at::kBFloat16});
  at::set_num_threads(3);
  Outcome with_three_threads = Updated(kOddSize, {}, {.weight = at::kBFloat16});
  at::set_num_threads(before);
  EXPECT_TRUE(with_one_thread == with_three_threads);
}

TEST(AdamW, EveryVectorCode_GivesTheSameBits) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    std::vector<Outcome> outcomes;
    for (VectorCode code : {VectorCode::kAny, VectorCode::kAvx2, VectorCode::kAvx512}) {
      Outcome& o = outcomes.emplace_back(Outcome{.w = at::linspace(-2, 3, kOddSize, at::kDouble).to(type),
                                                 .m = at::full({kOddSize}, 0.01, type),
                                                 .v = at::full({kOddSize}, 0.02, type),
                                                 .weights = at::full({kOddSize}, 0.0, type)});
      at::Tensor g = at::linspace(3, -2, kOddSize, at::kDouble).to(type == at::kDouble ? type : at::kHalf);
      auto bytes = [](const at::Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); };
      RunAdamW({.size = kOddSize,
                .master_type = type,
                .state_type = type,
                .gradient_type = g.scalar_type(),
                .master = bytes(o.w),
                .exp_avg = bytes(o.m),
                .exp_avg_sq = bytes(o.v),
                .gradient = bytes(g),
                .constants = {.scale = 0.3, .clip_value = 0.5, .keep = 0.999, .step_size = 0.01, .root_scale = 1.1},
                .rounding_key = 3},
               code);
    }
    EXPECT_TRUE(outcomes[0] == outcomes[1] && outcomes[0] == outcomes[2]) << type;
  }
}

TEST(AdamW, WritesWeightsRoundedToNearest) {
  for (at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    Outcome outcome = Updated(kOddSize, {}, {.weight = type});
    EXPECT_TRUE(outcome.weights.equal(outcome.w.to(type))) << type;
    EXPECT_TRUE(outcome.w.equal(Updated(kOddSize, {}, {}).w)) << "the masters are unchanged";
  }
}

TEST(AdamW, Accepts16BitGradients) {
  at::Tensor start = at::linspace(-2, 3, 1000), gradients = at::linspace(3, -2, 1000);
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    at::Tensor narrow = start.clone(), wide = start.clone();
    AdamW({}, {{.parameters = narrow, .gradients = gradients.to(type)}}).Step(0.01, 1);
    AdamW({}, {{.parameters = wide, .gradients = gradients.to(type).to(at::kFloat)}}).Step(0.01, 1);
    EXPECT_TRUE(narrow.equal(wide)) << type;
  }
}

TEST(AdamW, ClipsEachScaledGradient) {
  at::Tensor gradients = at::linspace(-8, 8, 1001), clipped = gradients.mul(0.25).clamp(-1, 1);
  at::Tensor a = at::full({1001}, 1.0f), b = a.clone();
  AdamW({.clip_value = 1}, {{.parameters = a, .gradients = gradients}}).Step(0.01, 0.25);
  AdamW({}, {{.parameters = b, .gradients = clipped}}).Step(0.01, 1);
  EXPECT_TRUE(a.equal(b));
}

// An update of 1/16 of the distance between bf16 numbers must take effect one time in sixteen.
TEST(AdamW, StochasticRounding_KeepsTheMean) {
  const int64_t size = 1 << 20;
  const double step = 1.0 / 256 / 16;  // below 1.0 the distance between bf16 numbers is 1/256
  at::Tensor w = at::full({size}, 1.0, at::kBFloat16), g = at::full({size}, 1.0f);
  AdamW optimizer({.weight_decay = 0, .state_type = at::kFloat, .seed = 3}, {{.parameters = w, .gradients = g}});
  for (int i = 0; i < 4; ++i) optimizer.Step(step, 1);
  const double moved = 1 - w.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(moved, 4 * step, 0.02 * 4 * step);
  EXPECT_GT(w.eq(1).sum().item<int64_t>(), size / 2) << "most elements are unchanged";
}

TEST(AdamW, StochasticRounding_DependsOnTheSeed_AndKeepsZero) {
  const Types types{.master = at::kBFloat16, .state = at::kBFloat16, .weight = at::kBFloat16};
  EXPECT_FALSE(Updated(kOddSize, {}, types, 1) == Updated(kOddSize, {}, types, 2));
  at::Tensor w = at::full({1000}, 0.0, at::kBFloat16), g = at::full({1000}, 0.0f);
  AdamW optimizer({}, {{.parameters = w, .gradients = g, .decays = true}});
  for (int i = 0; i < 10; ++i) optimizer.Step(0.1, 1);
  EXPECT_TRUE(w.eq(0).all().item<bool>());
  EXPECT_TRUE(optimizer.exp_avg_sq()[0].eq(0).all().item<bool>());
}

TEST(AdamW, StochasticRounding_AroundTwoToThe32Elements_DoesNotDependOnTheCuts) {
  const Types types{.master = at::kBFloat16, .state = at::kBFloat16, .weight = at::kBFloat16};
  const int64_t first = (int64_t{1} << 32) - 700;

  EXPECT_TRUE(Updated(2000, {}, types, 7, first) == Updated(2000, {333, 1500}, types, 7, first));
}

TEST(ElementNumbers, AreThoseOfTheWholeParameter) {
  const ElementRuns columns{.base = 2, .length = 3, .stride = 6};  // columns 2 to 4 of a matrix [2, 6]
  const int64_t high = int64_t{1} << 32;

  const NumberedElements in_second_row = NumbersFrom(columns, 4, 100);
  const NumberedElements at_end_of_first_row = NumbersFrom(columns, 2, 100);
  const NumberedElements of_whole = NumbersFrom({}, 4, 100);
  const NumberedElements below_limit = NumbersFrom({}, high - 5, 100);

  EXPECT_EQ(in_second_row.number, 9);
  EXPECT_EQ(in_second_row.count, 2);
  EXPECT_EQ(at_end_of_first_row.number, 4);
  EXPECT_EQ(at_end_of_first_row.count, 1);
  EXPECT_EQ(of_whole.number, 4);
  EXPECT_EQ(of_whole.count, 100);
  EXPECT_EQ(below_limit.number, high - 5);
  EXPECT_EQ(below_limit.count, 5) << "the high 32 bits change after 5 elements";
}

TEST(SixteenBit, RoundsAsLibTorchDoes) {
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const uint32_t bits = random();
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bfloat16ToFloat(NearestBfloat16(value))));
      EXPECT_TRUE(std::isnan(Bfloat16ToFloat(StochasticBfloat16(value, random()))));
      continue;
    }
    ASSERT_EQ(NearestBfloat16(value), c10::BFloat16(value).x) << value;
    ASSERT_EQ(NearestHalf(value), c10::Half(value).x) << value;
    const uint16_t down = static_cast<uint16_t>(bits >> 16), drawn = StochasticBfloat16(value, random());
    ASSERT_TRUE(drawn == down || (drawn == down + 1 && (bits & 0xffffu) != 0 && std::isfinite(value))) << value;
  }
}

TEST(SumOfSquares, MatchesTheFp64SumForEveryLength) {
  for (int64_t size : {0, 1, 31, 32, 33, 4095, 4096, 4097, 10'000}) {
    at::Tensor x = at::linspace(-3, 5, size, at::kDouble);
    double expected = x.square().sum().item<double>();
    EXPECT_NEAR(SumOfSquares(x), expected, 1e-13 * expected) << size << " values";
  }
}

TEST(SumOfSquares, OfAMillionFp32Values_KeepsSixDigits) {
  at::Tensor x = at::linspace(-3, 5, 1'000'000, at::kFloat);
  double expected = x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(SumOfSquares(x), expected, 1e-6 * expected);
}

TEST(SumOfSquares, IsTheSameInEveryType_ForAnyNumberOfThreads_AndInParts) {
  const int before = at::get_num_threads();
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    at::Tensor x = at::linspace(-3, 5, 300'007, at::kDouble).to(type);
    const double expected = x.to(at::kDouble).square().sum().item<double>();
    at::set_num_threads(1);
    const double one = SumOfSquares(x);
    at::set_num_threads(3);
    EXPECT_EQ(SumOfSquares(x), one) << type;
    EXPECT_NEAR(one, expected, 1e-13 * expected) << type;
    EXPECT_NEAR(SumOfSquares(x.narrow(0, 0, 1001)) + SumOfSquares(x.narrow(0, 1001, 299'006)), expected,
                1e-13 * expected)
        << type;
  }
  at::set_num_threads(before);
}

TEST(SumOfSquares, OfSeveralTensors_IsTheirSumInOrder) {
  at::Tensor a = at::linspace(-3, 5, 1'001, at::kFloat), b = at::linspace(1, 2, 77, at::kFloat);

  EXPECT_EQ(SumOfSquares({a, b}), SumOfSquares(a) + SumOfSquares(b));
  EXPECT_EQ(SumOfSquares(std::vector<at::Tensor>{}), 0);
}

TEST(SumOfSquares, PropagatesNonFiniteValues) {
  at::Tensor x = at::full({100}, 1.0f);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares(x)));
  x[50] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(SumOfSquares(x)));
}

TEST(GradientScale, DividesByTheTokensOnce) {
  GradientScale scale = ComputeGradientScale(/*sum_of_squares=*/400, /*num_tokens=*/10, /*clip_norm=*/0);
  EXPECT_DOUBLE_EQ(scale.norm, 2);
  EXPECT_DOUBLE_EQ(scale.scale, 0.1);
}

TEST(GradientScale, DividesByTheFactorWithWhichBackwardWasStarted) {
  GradientScale scale =
      ComputeGradientScale(/*sum_of_squares=*/400 * 64, /*num_tokens=*/10, /*clip_norm=*/1.0, /*seed=*/8);
  EXPECT_DOUBLE_EQ(scale.norm, 2);
  EXPECT_NEAR(scale.scale, 0.05 / 8, 1e-8);
}

TEST(GradientScale, ClipsOnlyAboveTheLimit) {
  EXPECT_DOUBLE_EQ(ComputeGradientScale(400, 10, 4.0).scale, 0.1);
  EXPECT_NEAR(ComputeGradientScale(400, 10, 1.0).scale, 0.05, 1e-7);
  EXPECT_DOUBLE_EQ(ComputeGradientScale(400, 10, 1.0).norm, 2) << "the reported norm is the one before clipping";
}

}  // namespace
}  // namespace trainyard
