// Generates text with the model of a checkpoint, one token at a time.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/options.h"

namespace trainyard {

struct SampledText {
  std::string checkpoint;  // its folder
  uint64_t step = 0;
  std::string text;  // the prompt and the generated text; not always UTF-8 for byte tokens
};

// Possible errors: NotFound if there is no checkpoint; DataLoss if none can be trusted; InvalidArgument.
absl::StatusOr<SampledText> SampleText(const SampleOptions& options);

}  // namespace trainyard
