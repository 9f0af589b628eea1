#include "worker/cuda/norm.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "common/status_macros.h"
#include "worker/cuda/kernel_launch.h"

namespace trainyard {
namespace {

// Set before the operators are registered, and never changed.
struct NormKernels {
  KernelsByType layer, layer_backward, rms, rms_backward;
} norm_kernels;

struct NormShape {
  int64_t rows, columns, threads;
};

NormShape ShapeOf(const at::Tensor& x) {
  const int64_t columns = x.size(-1), packs = columns * x.element_size() / 16;
  TORCH_CHECK(x.is_contiguous() && IsAligned(x) && columns * x.element_size() % 16 == 0 && packs >= 1 && packs <= 1024,
              "a norm needs dense rows of 16 to 16,384 bytes, in multiples of 16");
  return {.rows = x.numel() / columns, .columns = columns, .threads = (packs + 31) / 32 * 32};
}

void CheckParameter(const at::Tensor& parameter, const at::Tensor& x) {
  TORCH_CHECK(parameter.is_contiguous() && parameter.scalar_type() == x.scalar_type() &&
                  parameter.device() == x.device() && parameter.numel() == x.size(-1),
              "a parameter of a norm must be dense, of the type and on the device of x, and as long as its rows");
}

// Enough blocks for `threads` threads on each multiprocessor.
unsigned NumBlocks(const NormShape& shape, int64_t threads) {
  const int64_t multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  return static_cast<unsigned>(std::min(shape.rows, multiprocessors * std::max<int64_t>(1, threads / shape.threads)));
}

at::Tensor Dense(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return IsAligned(dense) ? dense : dense.clone();
}

std::tuple<at::Tensor, at::Tensor> NormOnGpu(const at::Tensor& x, const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias, double eps) {
  const NormShape shape = ShapeOf(x);
  CheckParameter(weight, x);
  if (bias.has_value()) CheckParameter(*bias, x);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  at::Tensor statistics = at::empty({bias.has_value() ? 2 : 1, shape.rows}, x.options().dtype(at::kFloat));
  if (shape.rows == 0) return {y, statistics};
  float *means = statistics.mutable_data_ptr<float>(), *inverses = means + (bias.has_value() ? shape.rows : 0);
  Launch((bias.has_value() ? norm_kernels.layer : norm_kernels.rms).For(x), dim3(NumBlocks(shape, 1536)), shape.threads,
         x.const_data_ptr(), weight.const_data_ptr(), bias.has_value() ? bias->const_data_ptr() : nullptr,
         y.mutable_data_ptr(), means, inverses, shape.rows, static_cast<int>(shape.columns), static_cast<float>(eps));
  return {y, statistics};
}

std::tuple<at::Tensor, at::Tensor> NormBackwardOnGpu(const at::Tensor& x, const at::Tensor& weight,
                                                     const at::Tensor& statistics, const at::Tensor& grad_y,
                                                     const std::optional<at::Tensor>& grad_residual, bool needs_x) {
  const NormShape shape = ShapeOf(x);
  CheckParameter(weight, x);
  TORCH_CHECK(shape.rows > 0, "a norm without rows has no gradient");
  const c10::cuda::CUDAGuard guard(x.device());
  const bool is_centered = statistics.size(0) == 2;
  const unsigned blocks = NumBlocks(shape, 768);
  const at::Tensor of_y = Dense(grad_y), residual = grad_residual.has_value() ? Dense(*grad_residual) : at::Tensor();
  at::Tensor grad_x = needs_x ? at::empty_like(x) : at::Tensor();
  at::Tensor sums = at::empty({is_centered ? 2 : 1, blocks, shape.columns}, statistics.options());
  const float *means = statistics.const_data_ptr<float>(), *inverses = means + (is_centered ? shape.rows : 0);
  float *of_weights = sums.mutable_data_ptr<float>(),
        *of_biases = of_weights + (is_centered ? blocks * shape.columns : 0);
  Launch((is_centered ? norm_kernels.layer_backward : norm_kernels.rms_backward).For(x), dim3(blocks), shape.threads,
         x.const_data_ptr(), weight.const_data_ptr(), of_y.const_data_ptr(),
         residual.defined() ? residual.const_data_ptr() : nullptr, means, inverses,
         needs_x ? grad_x.mutable_data_ptr() : nullptr, of_weights, of_biases, shape.rows,
         static_cast<int>(shape.columns));
  return {grad_x, sums};
}

}  // namespace

absl::Status RegisterNorm(cudaLibrary_t library) {
  RETURN_IF_ERROR(FindKernels(library, "layer_norm", "", norm_kernels.layer));
  RETURN_IF_ERROR(FindKernels(library, "layer_norm", "_backward", norm_kernels.layer_backward));
  RETURN_IF_ERROR(FindKernels(library, "rms_norm", "", norm_kernels.rms));
  RETURN_IF_ERROR(FindKernels(library, "rms_norm", "_backward", norm_kernels.rms_backward));
  static auto* operators =
      new torch::Library(torch::Library::IMPL, "trainyard", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  operators->impl("norm", &NormOnGpu);
  operators->impl("norm_backward", &NormBackwardOnGpu);
  return absl::OkStatus();
}

}  // namespace trainyard
