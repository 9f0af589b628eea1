// The head and its loss for large vocabularies: the sum of the cross-entropies of x w^T, without ever holding the
// scores of all rows.
//
// Forward computes the scores of a few rows at a time and keeps one number per row, the logarithm of the sum of
// exponentials. Backward computes the scores again, replaces them by their gradient, and multiplies the gradient with w
// and x, before the next rows are processed. The memory for scores is bounded (HeadLossElements), at the price of one
// more product. Results equal those of the head followed by the loss, except for the order of sums. If the sink has 16
// bits, the gradient of w is computed by parts of the vocabulary on a CPU, so that it is rounded once.
//
// On a GPU, sizes are padded to what its matrix units need, and one kernel replaces scores by their gradients
// (row_cross_entropy.h). Without a sink, forward computes the gradients too, apart from the factor that backward is
// started with, so no product is computed twice. Source of this idea: Liger Kernel, arXiv:2410.10989.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "worker/model/ops/linear.h"

namespace trainyard {

// The most scores that are held at a time on a device.
int64_t HeadLossElements(const at::Device& device);

// `x` is [rows, in], `weight` [vocabulary, in], `targets` int64 [rows]; a target of -1 has no loss. Returns a scalar,
// in fp64 if the type of the scores is fp64, otherwise in fp32. That type is `output`, or x's type if not given; scores
// are rounded to x's type first, as the head's product does. Can be differentiated once. `sink` (model.h) may accept
// the gradient of the weight, which then does not go through autograd; it must outlive backward; pass null if the
// weight has other gradients. `max_elements`: of scores; HeadLossElements if not given.
// REQUIRES: x and weight have one type; weight is dense.
at::Tensor HeadLoss(const at::Tensor& x, const NumberedTensor& weight, const at::Tensor& targets,
                    std::optional<at::ScalarType> output, GradientSink* sink = nullptr,
                    std::optional<int64_t> max_elements = std::nullopt);

// The same by the kernels of one kind of device: kOwn on a CPU, kPadded on a GPU and, in tests, also on a CPU.
enum class HeadLossKernel { kOwn, kPadded };
at::Tensor HeadLossBy(HeadLossKernel kernel, const at::Tensor& x, const NumberedTensor& weight,
                      const at::Tensor& targets, std::optional<at::ScalarType> output, GradientSink* sink,
                      std::optional<int64_t> max_elements = std::nullopt);

// The same loss from scores that are stored for all rows, [rows, vocabulary]: for small vocabularies, and for classes.
at::Tensor LossOfScores(const at::Tensor& scores, const at::Tensor& targets);

}  // namespace trainyard
