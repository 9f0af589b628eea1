// Named model sizes, for `train.model.preset`.
#pragma once

#include "absl/types/span.h"
#include "models/model_sizes.h"

namespace trainyard {

struct ModelPreset {
  const char* name;
  ModelSizes sizes;  // the vocabulary is 256 if it depends on the tokenizer of the job
};

absl::Span<const ModelPreset> ModelPresets();

}  // namespace trainyard
