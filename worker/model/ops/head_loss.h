// The head and its loss for large vocabularies: the sum of the cross-entropies of x w^T, without ever holding the
// scores of all rows.
//
// Forward computes the scores of a few rows at a time and keeps one number per row, the logarithm of the sum of
// exponentials. Backward computes the scores again, replaces them by their gradient, and multiplies the gradient with w
// and x, before the next rows are processed. The memory for scores is bounded (kHeadLossElements), at the price of one
// more product. Results equal those of the head followed by the loss, except for the order of sums.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "models/head_loss_limits.h"
#include "worker/model/ops/linear.h"

namespace trainyard {

// `x` is [rows, in], `weight` [vocabulary, in], `targets` int64 [rows]; a target of -1 has no loss. Returns a scalar of
// type `output`, or of x's type; scores are rounded to x's type first, as the head's product does. Can be
// differentiated once. `sink` may accept the gradient of the weight; it must outlive backward; pass null if the weight
// has other gradients. REQUIRES: x and weight have one type; weight is dense.
at::Tensor HeadLoss(const at::Tensor& x, const NumberedTensor& weight, const at::Tensor& targets,
                    std::optional<at::ScalarType> output, GradientSink* sink = nullptr,
                    int64_t max_elements = kHeadLossElements);

}  // namespace trainyard
