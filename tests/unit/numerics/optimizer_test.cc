// AdamW over flat ranges against its formula, and the norm and scale of gradients.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "worker/numerics/adamw.h"
#include "worker/numerics/gradient_norm.h"

namespace trainyard {
namespace {

// One element's life by the formula.
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
  at::Tensor fresh = gradients.clone();
  AdamW optimizer({},
                  {{.parameters = flat.narrow(0, 0, 60), .gradients = gradients.narrow(0, 0, 60), .decays = true},
                   {.parameters = flat.narrow(0, 60, 40), .gradients = gradients.narrow(0, 60, 40), .decays = false}});

  for (int t = 1; t <= 5; ++t) {
    gradients.copy_(fresh);
    optimizer.Step(/*lr=*/0.01, /*gradient_scale=*/0.25);
    for (int i = 0; i < 100; ++i) {
      expected[i].Step(fresh[i].item<double>() * 0.25, 0.01, i < 60 ? 0.1 : 0, t);
    }
  }

  EXPECT_EQ(optimizer.num_steps(), 5u);
  for (int i = 0; i < 100; ++i) EXPECT_NEAR(flat[i].item<double>(), expected[i].w, tolerance) << "element " << i;
  EXPECT_NEAR(optimizer.exp_avg()[1][39].item<double>(), expected[99].m, tolerance);
  EXPECT_NEAR(optimizer.exp_avg_sq()[0][0].item<double>(), expected[0].v, tolerance);
}

TEST(AdamW, FollowsTheFormulaInFp64) { ExpectFollowsTheFormula(at::kDouble, 1e-14); }
TEST(AdamW, FollowsTheFormulaInFp32) { ExpectFollowsTheFormula(at::kFloat, 1e-6); }

TEST(AdamW, RestoredStateGoesOnBitForBit) {
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

TEST(SumOfSquares, IsExactToFp64sRoundingForEveryLength) {
  for (int64_t size : {0, 1, 31, 32, 33, 4095, 4096, 4097, 10'000}) {
    at::Tensor x = at::linspace(-3, 5, size, at::kDouble);
    double expected = x.square().sum().item<double>();
    EXPECT_NEAR(SumOfSquares(x), expected, 1e-13 * expected) << size;
  }
}

TEST(SumOfSquares, OfAMillionFp32KeepsSixDigits) {
  at::Tensor x = at::linspace(-3, 5, 1'000'000, at::kFloat);
  double expected = x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(SumOfSquares(x), expected, 1e-6 * expected);
}

TEST(SumOfSquares, PassesOnWhatIsNotFinite) {
  at::Tensor x = at::full({100}, 1.0f);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares(x)));
  x[50] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(SumOfSquares(x)));
}

TEST(GradientScale, DividesByTheTokensOnce) {
  GradientScale scale = ScaleOf(/*sum_of_squares=*/400, /*num_tokens=*/10, /*clip_norm=*/0);
  EXPECT_DOUBLE_EQ(scale.norm, 2);
  EXPECT_DOUBLE_EQ(scale.scale, 0.1);
}

TEST(GradientScale, ClipsOnlyAboveTheLimit) {
  EXPECT_DOUBLE_EQ(ScaleOf(400, 10, 4.0).scale, 0.1);
  EXPECT_NEAR(ScaleOf(400, 10, 1.0).scale, 0.05, 1e-7);
  EXPECT_DOUBLE_EQ(ScaleOf(400, 10, 1.0).norm, 2) << "the norm told is the one before clipping";
}

}  // namespace
}  // namespace trainyard
