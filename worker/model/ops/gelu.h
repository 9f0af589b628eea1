// GELU in its tanh form, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (arXiv:1606.08415), applied to the sum of x and
// a bias.
//
// LibTorch's kernel computes an exact tanh in the forward pass and again in backward, which takes a tenth of a small
// model's step on a CPU. Our kernel computes one exponential, with a relative error of about 1e-7, and stores the
// derivative instead of the input, so that backward is one product; the bias is added in the same pass. Our kernel
// supports fp32 and bf16 on a CPU; all other cases use LibTorch. The result of an element does not depend on its
// position or on the number of threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/linear.h"

namespace trainyard {

// GELU of x, or of x + bias, where bias is as long as the last dimension of x. The result is contiguous and can be
// differentiated once. `sink` may accept the gradient of the bias; it must outlive backward.
at::Tensor Gelu(const at::Tensor& x, const NumberedTensor& bias, GradientSink* sink = nullptr);
at::Tensor Gelu(const at::Tensor& x);

}  // namespace trainyard
