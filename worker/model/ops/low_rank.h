// A projection with a low-rank adapter (models/lora.h): Linear(x, W) + scale (dropout(x) A^T) B^T. Both products are
// those of linear.h, so their gradients go to the strategy's buffers, and a tape stores their results. W is frozen, so
// it gets no gradient.
//
// Thread-safe.
#pragma once

#include <vector>

#include "models/model_description.h"
#include "worker/model/ops/dropout.h"
#include "worker/model/ops/linear.h"

namespace trainyard {

struct LowRank {
  NumberedTensor a;  // [rank, in]; undefined: there is no adapter
  NumberedTensor b;  // [out, rank]
  double scale = 1;
  int place = 0;  // the index of the projection in its block
};

// The adapter of projection `index` of the description. `indexes` holds for each parameter of the description its index
// in `parameters`.
LowRank LowRankOf(const ModelDescription& model, size_t index, const std::vector<NamedTensor>& parameters,
                  const std::vector<int>& indexes);

// Adds the adapter's parameters to the order in which backward completes gradients, before those of its projection.
void AddTo(std::vector<int>& ready_order, const LowRank& adapter);

// Like Linear, with the adapter added if there is one. `dropout`: of the inputs of A; `slice`: the part of these inputs
// that x holds. REQUIRES: what Linear requires; all tensors have the same type.
at::Tensor AdaptedLinear(const at::Tensor& x, const LinearArgs& args, const LowRank& adapter,
                         const UnitDropout& dropout, const SampleSlice& slice = {});

}  // namespace trainyard
