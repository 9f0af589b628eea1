// The two products of a pair of projections that tensor ranks divide (tensor_group.h): first a column product, whose
// outputs are divided, then a row product, whose inputs are divided. Each needs one sum over the group, however many
// projections have the same x: a column product sums the gradient of x, a row product sums its result. With sequence
// parallelism (sequence_part.h) each of these sums becomes a reduce-scatter, and the pass that needs no sum, forward or
// backward, needs an all-gather. Backward of a column product gathers x once more, so that forward need not store the
// rows of other ranks.
//
// The row product is Linear with a group (linear.h).
//
// All ranks of the group call these functions in the same order. Errors of the group are thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/model/ops/linear.h"

namespace trainyard {

// Column products of one x: Linear for each of `projections`, which have neither a residual nor a group. Each weight
// and bias is the part of this rank. Backward starts the sum of the gradient of x before it computes the gradients of
// the parameters, which it completes in reverse order, each weight before its bias. REQUIRES: what Linear requires; all
// projections have the same sink, tape and part; the group is that of the part.
std::vector<at::Tensor> ColumnLinear(const at::Tensor& x, const std::vector<LinearArgs>& projections,
                                     TensorGroup& group);

// The sum of Product(x, w) over the group, plus bias and residual. No gradient is recorded. Every rank gets the same
// bits.
at::Tensor SummedProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                         const at::Tensor& residual, TensorGroup& group);
// This rank's rows of the same sum: x has all rows, the residual and the result have only this rank's rows.
at::Tensor ScatteredProduct(const at::Tensor& x, const at::Tensor& w, bool transposed, const at::Tensor& bias,
                            const at::Tensor& residual, const SequencePart& part);

}  // namespace trainyard
