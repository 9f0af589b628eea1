// Checks that a part of a model (models/model_part.h) can compute what is requested. Failures are programming errors,
// thrown like those of LibTorch.
#pragma once

#include <c10/util/Exception.h>

#include "models/model_part.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// A part that has only a box (a range of rows or columns) of each divided matrix can run a pass only together with the
// ranks that have the other boxes.
inline void CheckGroup(const ModelPart& part, const TensorGroup* group) {
  TORCH_CHECK(part.tensor_size == 1 || group != nullptr, "tensor rank ", part.tensor_rank, " of ", part.tensor_size,
              " has no group to exchange activations with; pass one to NewModelPart");
}

// Scores of tokens and generation need the whole model.
inline void CheckWhole(const ModelPart& part) {
  TORCH_CHECK(part.tensor_size == 1 && part.embeds && part.heads,
              "a model that is divided among ranks computes no scores of tokens; load the whole model");
}

}  // namespace trainyard
