// Named model sizes, for `train.model.preset`.
#pragma once

#include "absl/types/span.h"
#include "models/model_sizes.h"

namespace trainyard {

struct ModelPreset {
  const char* name;
  ModelSizes sizes;  // only layers, heads, width and context are used
};

absl::Span<const ModelPreset> ModelPresets();

}  // namespace trainyard
