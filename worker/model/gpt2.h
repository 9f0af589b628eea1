// The engine's GPT-2: forward and backward with the parameters of models/gpt2_description.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/model_sizes.h"
#include "worker/model/model.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// Like NewModelPart (model_factory.h). REQUIRES: the family is GPT-2.
absl::StatusOr<std::unique_ptr<Model>> NewGpt2(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                               at::ScalarType type, TensorGroup* tensor_group);

}  // namespace trainyard
