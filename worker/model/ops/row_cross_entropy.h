// The cross-entropy of each row of scores, which can replace the scores by its gradient. It is an operator in the
// dispatcher of LibTorch, trainyard::cross_entropy_, for which the GPU plugin (worker/cuda/cross_entropy.h) registers a
// single kernel.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainyard {

// `scores` is [rows, at least columns], dense; the columns from `columns` on are padding. For the kernel of the plugin,
// the number of all columns must be a multiple of 64. `targets` is int64 [rows]; a row with a target of -1 has a loss
// and a gradient of 0. Returns the losses, [rows], in fp32, or in fp64 if the scores are fp64. If `writes_gradients`,
// overwrites the scores by `factor` times the gradient of the row's loss, and the padding by 0; otherwise the padding
// may be overwritten. Records no gradient.
at::Tensor CrossEntropyOfRows(const at::Tensor& scores, const at::Tensor& targets, int64_t columns, double factor,
                              bool writes_gradients);

}  // namespace trainyard
