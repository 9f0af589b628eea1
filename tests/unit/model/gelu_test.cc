#include "worker/model/ops/gelu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trainyard {
namespace {

// Returns the values and the slopes of `function` at the points of `x`.
std::pair<at::Tensor, at::Tensor> ValueAndSlope(at::Tensor (*function)(const at::Tensor&), at::Tensor x) {
  x.requires_grad_(true);
  at::Tensor y = function(x);
  y.sum().backward();
  return {y.detach().to(at::kDouble), x.grad().to(at::kDouble)};
}

at::Tensor LibTorchGelu(const at::Tensor& x) { return at::gelu(x, "tanh"); }

class GeluTest : public testing::Test {
 protected:
  GeluTest() { at::set_num_threads(1); }
};

TEST_F(GeluTest, MatchesFp64WithinFp32Rounding) {
  at::Tensor x = at::linspace(-12, 12, 100'003, at::kFloat);

  auto [y, slope] = ValueAndSlope(Gelu, x.clone());
  auto [exact_y, exact_slope] = ValueAndSlope(LibTorchGelu, x.to(at::kDouble));

  EXPECT_LT((y - exact_y).abs().max().item<double>(), 1e-6);
  EXPECT_LT((slope - exact_slope).abs().max().item<double>(), 1e-6);
  // Relative errors, except in the tails, where values are almost zero.
  at::Tensor in_range = x.abs().lt(3).to(at::kDouble);
  at::Tensor relative = (y - exact_y).abs() / exact_y.abs().clamp_min(1e-12) * in_range;
  EXPECT_LT(relative.max().item<double>(), 2e-6);
}

TEST_F(GeluTest, IsTheIdentityForLargeInputs_AndZeroForVeryNegativeOnes) {
  for (float far : {20.0f, 1e3f, 1e10f}) {
    EXPECT_EQ(Gelu(at::full({3}, far)).max().item<float>(), far);
    EXPECT_NEAR(Gelu(at::full({3}, -far)).min().item<float>(), 0, 1e-20);
  }
}

TEST_F(GeluTest, PropagatesNaN) {
  EXPECT_TRUE(std::isnan(Gelu(at::full({3}, std::numeric_limits<float>::quiet_NaN()))[0].item<float>()));
}

TEST_F(GeluTest, IsTheSameWithAndWithoutGradients) {
  at::Tensor x = at::linspace(-5, 5, 999).requires_grad_(true);
  at::Tensor with_gradients = Gelu(x).detach();
  c10::NoGradGuard no_grad;
  EXPECT_TRUE(with_gradients.equal(Gelu(x)));
}

TEST_F(GeluTest, LeavesFp64ToLibTorch) {
  at::Tensor x = at::linspace(-5, 5, 999, at::kDouble);
  EXPECT_TRUE(Gelu(x).equal(at::gelu(x, "tanh")));
}

}  // namespace
}  // namespace trainyard
