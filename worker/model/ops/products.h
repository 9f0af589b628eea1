// Matrix products of whole tensors, by the code that the plan in use chooses for their shape (numerics/product_plan.h):
// MKL, our own, or oneDNN; by LibTorch on other devices and for other types. No gradients are recorded for the results.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/numerics/product_plan.h"

namespace trainyard {

// x w + bias + residual, or x w^T + bias + residual. All arguments but the bias are dense matrices; bias and residual
// may be undefined.
at::Tensor Product(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias = {},
                   const at::Tensor& residual = {});

// The same into `y`, which is dense, of x's type, and may be the residual; no other overlap is allowed.
void WriteProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                  const at::Tensor& residual, at::Tensor y);

// Whether our own code computes the product of `x` and a weight with this key.
bool IsOwnProduct(const at::Tensor& x, const ProductKey& key);

// Writes a^T b to `place`, or adds it if `overwrites` is false. `place` is dense and of any floating-point type.
void WriteTransposedProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& place, bool overwrites);

}  // namespace trainyard
