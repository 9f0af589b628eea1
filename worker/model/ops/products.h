// Matrix products of whole tensors. MKL computes them in the tensors' own memory if HasGemm supports their type
// (linear.h), LibTorch otherwise. No gradients are recorded for the results.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// x w + bias + residual, or x w^T + bias + residual. All arguments but the bias are dense matrices; bias and residual
// may be undefined.
at::Tensor Product(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias = {},
                   const at::Tensor& residual = {});

// The same into `y`, which is dense, of x's type, and may be the residual; no other overlap is allowed.
void WriteProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                  const at::Tensor& residual, at::Tensor y);

// Writes a^T b to `place`, or adds it if `overwrites` is false. `place` is dense and of any floating-point type.
void WriteTransposedProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& place, bool overwrites);

}  // namespace trainyard
