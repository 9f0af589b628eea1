// Layer and root-mean-square normalisation on a GPU, by kernels of the plugin (worker/cuda/norm.h), which compute in
// fp32. The gradients of the parameters depend, in their last bits, on the number of multiprocessors.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Whether the kernels can process x: it is dense, not empty and on a GPU, has type fp32, bf16 or fp16, begins at a
// multiple of 16 bytes and has rows of at most 16 KiB in multiples of 16 bytes, and the plugin could load its kernels.
bool HasDeviceNorm(const at::Tensor& x);

struct DeviceNorm {
  at::Tensor y;
  at::Tensor statistics;  // fp32: [2, rows], means and inverse deviations, or [1, rows], inverse roots of mean squares
};

// REQUIRES: HasDeviceNorm(x). An undefined bias: RMS norm, whose normalised x is rounded before the product.
DeviceNorm RunDeviceNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

struct DeviceNormGradients {
  at::Tensor x;           // undefined unless requested
  at::Tensor parameters;  // fp32, [1 or 2, blocks, columns], to be summed over blocks: of the weight, and of the bias
};

// `grad_residual`: a gradient to be added to that of x; may be undefined. REQUIRES: x has at least one row.
DeviceNormGradients RunDeviceNormBackward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                                          const at::Tensor& grad_y, const at::Tensor& grad_residual, bool needs_x);

}  // namespace trainyard
