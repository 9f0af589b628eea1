// GELU in its tanh form, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (arXiv:1606.08415).
//
// LibTorch's kernel computes a tanh to the last bit in the forward pass and again in the backward one, which is a tenth
// of a small model's step on a CPU. Ours computes an exponential once, to about 1e-7 relative, and keeps the derivative
// in place of the input, so that backward is one product. It serves fp32 on one thread, the usual rank; everything else
// is LibTorch's.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// Can be differentiated once. The result is contiguous.
at::Tensor Gelu(const at::Tensor& x);

}  // namespace trainyard
