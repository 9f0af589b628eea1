// The engine's Llama, Mistral and Qwen2: forward and backward with the parameters of models/llama_description.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/model_sizes.h"
#include "worker/model/model.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// Like NewModelPart (model_factory.h). REQUIRES: IsLlamaGraph(sizes.family).
absl::StatusOr<std::unique_ptr<Model>> NewLlama(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                                at::ScalarType type, TensorGroup* tensor_group);

}  // namespace trainyard
