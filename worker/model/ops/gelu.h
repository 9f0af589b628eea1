// GELU in its tanh form, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (arXiv:1606.08415), of a sum with a bias.
//
// LibTorch's kernel computes a tanh to the last bit in the forward pass and again in the backward one, which is a tenth
// of a small model's step on a CPU. Ours computes an exponential once, to about 1e-7 relative, and keeps the derivative
// in place of the input, so that backward is one product; the bias is added in the same pass. It serves fp32 and bf16
// on a CPU; everything else is LibTorch's. An element's result does not depend on where it lies, nor on the number of
// threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/linear.h"

namespace trainyard {

// GELU of x, or of x + bias: as many elements as the last dimension of x has. Can be differentiated once. The result is
// contiguous. `sink` may take the gradient of the bias; it must outlive backward.
at::Tensor Gelu(const at::Tensor& x, const NumberedTensor& bias, GradientSink* sink = nullptr);
at::Tensor Gelu(const at::Tensor& x);

}  // namespace trainyard
