// The norms and sums of rows on a GPU. The reference is LibTorch on a CPU in fp64.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/gpu/gpu_fixture.h"
#include "worker/model/ops/device_norm.h"
#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/rms_norm.h"
#include "worker/model/ops/sum_rows.h"

namespace trainyard {
namespace {

constexpr double kEps = 1e-5;

class GpuNorm : public GpuFixture {
 protected:
  void SetUp() override {
    GpuFixture::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) {
      ASSERT_EQ(cuda_->Use(0)->slow_kernels_reason, "");
    }
  }
};

class TwoSums final : public GradientSink {
 public:
  explicit TwoSums(int64_t columns) : sums_{at::zeros({columns}, kGpu), at::zeros({columns}, kGpu)} {}
  Place Claim(int number) override { return {.tensor = sums_[number], .overwrites = false}; }
  void Done(int) override {}
  const at::Tensor& sum(int number) const { return sums_[number]; }

 private:
  std::vector<at::Tensor> sums_;
};

at::Tensor Waves(at::IntArrayRef sizes, double frequency) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).mul(frequency).sin().view(sizes);
}

struct NormInputs {
  at::Tensor x, weight, bias = {}, grad_y = {}, grad_residual = {};  // without a bias: RMS norm

  NormInputs To(at::Device device, at::ScalarType type) const {
    const auto copy = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(device, type, /*non_blocking=*/false, /*copy=*/true) : tensor;
    };
    return {copy(x), copy(weight), copy(bias), copy(grad_y), copy(grad_residual)};
  }
};

struct NormResults {
  at::Tensor y, grad_x, grad_weight, grad_bias;
};

// With a sink, the results have the gradients of parameters that it received.
NormResults RunNorm(NormInputs inputs, TwoSums* sink = nullptr) {
  inputs.x.requires_grad_(true);
  inputs.weight.requires_grad_(true);
  if (inputs.bias.defined()) inputs.bias.requires_grad_(true);
  const Normalised norm = inputs.bias.defined() ? LayerNorm(inputs.x, {inputs.weight, 0}, {inputs.bias, 1}, kEps, sink)
                                                : RmsNorm(inputs.x, {inputs.weight, 0}, kEps, sink);
  at::Tensor loss = (norm.y * inputs.grad_y).sum();
  if (inputs.grad_residual.defined()) loss = loss + (norm.x * inputs.grad_residual).sum();
  loss.backward();
  const auto on_cpu = [](const at::Tensor& tensor) { return tensor.detach().cpu().to(at::kDouble); };
  NormResults results;
  results.y = on_cpu(norm.y);
  results.grad_x = on_cpu(inputs.x.grad());
  results.grad_weight = on_cpu(sink == nullptr ? inputs.weight.grad() : sink->sum(0));
  if (inputs.bias.defined()) results.grad_bias = on_cpu(sink == nullptr ? inputs.bias.grad() : sink->sum(1));
  return results;
}

double LargestOf(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

double ErrorOf(const at::Tensor& found, const at::Tensor& exact) { return LargestOf(found - exact) / LargestOf(exact); }

// The terms of these sums cancel each other, so their errors are compared with those of a random walk.
double ErrorOfSum(const at::Tensor& found, const at::Tensor& exact, int64_t rows) {
  return LargestOf(found - exact) / std::max(std::sqrt(static_cast<double>(rows)), LargestOf(exact));
}

void ExpectEqual(const NormResults& found, const NormResults& exact, double tolerance) {
  EXPECT_LT(ErrorOf(found.y, exact.y), tolerance);
  EXPECT_LT(ErrorOf(found.grad_x, exact.grad_x), tolerance);
  const int64_t rows = exact.y.numel() / exact.y.size(-1);
  EXPECT_LT(ErrorOfSum(found.grad_weight, exact.grad_weight, rows), tolerance);
  if (exact.grad_bias.defined()) {
    EXPECT_LT(ErrorOfSum(found.grad_bias, exact.grad_bias, rows), tolerance);
  }
}

// Widths of one and several warps, of the largest block, and those that only LibTorch supports: rows that are no
// multiple of 16 bytes, or longer than 16 KiB.
TEST_F(GpuNorm, EveryWidthAndType_MatchesTheCpu) {
  for (const int64_t columns : {8, 64, 768, 1600, 4096, 8192, 77, 8200}) {
    for (const bool has_bias : {true, false}) {
      NormInputs inputs{.x = Waves({3, 1001, columns}, 0.7) * 3 + 0.5,
                        .weight = Waves({columns}, 0.3) + 1,
                        .bias = has_bias ? Waves({columns}, 0.9) : at::Tensor(),
                        .grad_y = Waves({3, 1001, columns}, 0.11),
                        .grad_residual = Waves({3, 1001, columns}, 0.23)};
      for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}}) {
        SCOPED_TRACE(testing::Message() << columns << " columns, " << type << (has_bias ? ", layer" : ", RMS"));
        const NormInputs rounded = inputs.To(at::kCPU, type), on_gpu = inputs.To(kGpu, type);
        EXPECT_EQ(HasDeviceNorm(on_gpu.x), columns != 77 && columns * on_gpu.x.element_size() <= 16'384);
        const NormResults exact = RunNorm(rounded.To(at::kCPU, at::kDouble));
        ExpectEqual(RunNorm(on_gpu), exact, tolerance);
        if (type == at::kFloat) continue;
        TwoSums sink(columns);
        if (HasDeviceNorm(on_gpu.x)) ExpectEqual(RunNorm(inputs.To(kGpu, type), &sink), exact, tolerance);
      }
    }
  }
}

TEST_F(GpuNorm, WithoutGradientsOrResidual_ReturnsTheSame) {
  NormInputs inputs{.x = Waves({700, 768}, 0.7),
                    .weight = Waves({768}, 0.3),
                    .bias = Waves({768}, 0.9),
                    .grad_y = Waves({700, 768}, 0.11)};
  ExpectEqual(RunNorm(inputs.To(kGpu, at::kFloat)), RunNorm(inputs.To(at::kCPU, at::kDouble)), 1e-5);

  const NormInputs on_gpu = inputs.To(kGpu, at::kBFloat16);
  const c10::NoGradGuard no_gradients;
  const at::Tensor whole = LayerNorm(on_gpu.x, {on_gpu.weight, 0}, {on_gpu.bias, 1}, kEps).y;
  const at::Tensor part = LayerNorm(on_gpu.x.slice(0, 13, 14), {on_gpu.weight, 0}, {on_gpu.bias, 1}, kEps).y;
  EXPECT_TRUE(part.equal(whole.slice(0, 13, 14))) << "the result of a row depends on its position";
  EXPECT_TRUE(RmsNorm(on_gpu.x, {on_gpu.weight, 0}, kEps).y.isfinite().all().item<bool>());
}

TEST_F(GpuNorm, ParametersThatBeginAnywhere_AreRead) {
  const NormInputs inputs =
      NormInputs{.x = Waves({100, 768}, 0.7), .weight = Waves({768}, 0.3), .bias = Waves({768}, 0.9)}.To(kGpu,
                                                                                                         at::kBFloat16);
  const at::Tensor flat = at::cat({at::zeros({1}, inputs.weight.options()), inputs.weight, inputs.bias});

  const c10::NoGradGuard no_gradients;
  const at::Tensor aligned = LayerNorm(inputs.x, {inputs.weight, 0}, {inputs.bias, 1}, kEps).y;
  EXPECT_TRUE(LayerNorm(inputs.x, {flat.narrow(0, 1, 768), 0}, {flat.narrow(0, 769, 768), 1}, kEps).y.equal(aligned));
}

TEST_F(GpuNorm, SumsOfRows_MatchTheCpu) {
  for (const int64_t columns : {8, 768, 3072, 10'048}) {
    const at::Tensor rows = Waves({4'099, columns}, 0.7) + 0.25;
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-6}, {at::kBFloat16, 1e-6}, {at::kHalf, 1e-6}}) {
      const at::Tensor rounded = rows.to(type), fewer = WithFewerRows(rounded.to(kGpu));
      EXPECT_LT(fewer.size(0), 4'099);
      EXPECT_EQ(fewer.scalar_type(), at::kFloat);
      EXPECT_LT(ErrorOf(fewer.sum(0).cpu().to(at::kDouble), rounded.to(at::kDouble).sum(0)), tolerance)
          << columns << " columns, " << type;
    }
  }
  const at::Tensor odd = at::zeros({5'000, 77}, at::TensorOptions().dtype(at::kBFloat16).device(kGpu));
  EXPECT_EQ(WithFewerRows(odd).size(0), 5'000);
}

}  // namespace
}  // namespace trainyard
