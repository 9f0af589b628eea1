// Makes the engine's model of any family from its sizes.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "models/model_part.h"
#include "models/model_sizes.h"
#include "worker/model/model.h"
#include "worker/model/tensor_group.h"

namespace trainyard {

// Initial values depend on `seed` and the sizes alone; values in fp64 equal those in fp32. With `backed` false the
// parameters have no memory yet (model.h). Fails with the errors of CheckSizes.
absl::StatusOr<std::unique_ptr<Model>> NewModel(const ModelSizes& sizes, uint64_t seed, at::ScalarType type,
                                                bool backed = true);

// The same for a part of the model, without memory for its parameters. `part` comes from PartOfRank for these sizes.
// `tensor_group` must outlive the model; null if part.tensor_size is 1.
absl::StatusOr<std::unique_ptr<Model>> NewModelPart(const ModelSizes& sizes, const ModelPart& part, uint64_t seed,
                                                    at::ScalarType type, TensorGroup* tensor_group);

}  // namespace trainyard
