// The engine's Llama, Mistral and Qwen2: the passes over the parameters that models/llama_description.h describes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/model_sizes.h"
#include "worker/model/model.h"

namespace trainyard {

// As NewModel (model_factory.h). REQUIRES: IsLlamaGraph(sizes.family).
absl::StatusOr<std::unique_ptr<Model>> NewLlama(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                                bool backed = true);

}  // namespace trainyard
