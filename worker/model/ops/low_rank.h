// A projection with a low-rank adapter (models/lora.h): Linear(x, W) + scale (dropout(x) A^T) B^T. Both products are
// those of linear.h, so their gradients go to the strategy's buffers, and a tape stores their results. W is frozen, so
// it gets no gradient.
//
// Thread-safe, except that dropout uses the process' default generator (dropout.h).
#pragma once

#include <vector>

#include "models/model_description.h"
#include "worker/model/ops/linear.h"

namespace trainyard {

struct LowRank {
  NumberedTensor a;  // [rank, in]; undefined: there is no adapter
  NumberedTensor b;  // [out, rank]
  double scale = 1;
};

// The adapter of projection `index` of the description, whose parameters are `parameters`.
LowRank LowRankOf(const ModelDescription& model, size_t index, const std::vector<NamedTensor>& parameters);

// Adds the adapter's parameters to the order in which backward completes gradients, before those of its projection.
void AddTo(std::vector<int>& ready_order, const LowRank& adapter);

// As Linear, with the adapter added if there is one. `dropout_rate`: of the inputs of A. REQUIRES: that of Linear; all
// tensors have the same type.
at::Tensor AdaptedLinear(const at::Tensor& x, const LinearArgs& args, const LowRank& adapter, double dropout_rate);

}  // namespace trainyard
