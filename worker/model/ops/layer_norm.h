// Layer normalisation over the last dimension, (x - mean) / sqrt(variance + eps) w + b (arXiv:1607.06450), beside x
// itself.
//
// What follows a norm in a transformer's block is added to x again, so backward has two gradients of x: one of the sum
// and one of the norm. Ours takes both in one pass, and gives the gradients of w and b to the strategy's sink. It
// serves fp32 and bf16 on a CPU, computing in fp32; everything else is LibTorch's. A row's result does not depend on
// where it lies, nor any result on the number of threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/linear.h"

namespace trainyard {

struct Normalised {
  at::Tensor x;  // as it came in: to be used in its place from here on
  at::Tensor y;  // dense
};

// Can be differentiated once. `sink` may take the gradients of weight and bias; it must outlive backward. REQUIRES: all
// of one type; weight and bias as long as x's last dimension.
Normalised LayerNorm(const at::Tensor& x, const NumberedTensor& weight, const NumberedTensor& bias, double eps,
                     GradientSink* sink = nullptr);

}  // namespace trainyard
