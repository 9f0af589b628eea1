// Root-mean-square normalisation over the last dimension, x / sqrt(mean(x^2) + eps) w (arXiv:1910.07467). Returns x as
// well, for the residual sum.
//
// As in transformers, the normalised x is rounded to its type before the product with w. As in layer_norm.h, backward
// adds the gradients of x from the norm and from the residual sum in one pass, and passes the gradient of w to the
// strategy's sink. Our kernels support fp32 and bf16 on a CPU, and what device_norm.h says on a GPU, computing in fp32;
// all other cases use LibTorch, in fp32 for 16-bit types. The result of a row does not depend on its position or on the
// number of threads.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/model/ops/layer_norm.h"
#include "worker/model/ops/linear.h"

namespace trainyard {

// Can be differentiated once. `sink` may accept the gradient of the weight; it must outlive backward. REQUIRES: both
// tensors have one type; weight is as long as the last dimension of x.
Normalised RmsNorm(const at::Tensor& x, const NumberedTensor& weight, double eps, GradientSink* sink = nullptr);

}  // namespace trainyard
