// The classifier of models/mlp_description.h.
//
// A sample is a vector of features. Batches hold only integers, so `inputs`, [samples, features], holds the bits of
// doubles; column 0 of `targets` is the class, and all other columns have no loss (worker/data/csv_samples.h). Logits
// are [samples, 1, classes].
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/model_sizes.h"
#include "worker/model/model.h"

namespace trainyard {

// Like NewModel in model_factory.h, but without memory for the parameters.
absl::StatusOr<std::unique_ptr<Model>> NewMlp(const ModelSizes& sizes, uint64_t seed, at::ScalarType type);

}  // namespace trainyard
