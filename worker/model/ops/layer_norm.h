// Layer normalisation over the last dimension, (x - mean) / sqrt(variance + eps) w + b (arXiv:1607.06450). Returns x as
// well.
//
// In a transformer block the result of the layers after a norm is added to x, so backward has two gradients of x: that
// of the addition and that of the norm. Our kernel combines both in one pass, and passes the gradients of w and b to
// the strategy's sink. Our kernels support fp32 and bf16 on a CPU, and what device_norm.h says on a GPU, computing in
// fp32; all other cases use LibTorch. The result of a row does not depend on its position or on the number of threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/linear.h"

namespace trainyard {

struct Normalised {
  at::Tensor x;  // the input; callers must use this tensor instead of their own
  at::Tensor y;  // dense
};

// Can be differentiated once. `sink` may accept the gradients of weight and bias; it must outlive backward. REQUIRES:
// all tensors have one type; weight and bias are as long as the last dimension of x.
Normalised LayerNorm(const at::Tensor& x, const NumberedTensor& weight, const NumberedTensor& bias, double eps,
                     GradientSink* sink = nullptr);

}  // namespace trainyard
