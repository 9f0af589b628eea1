// Text from a checkpoint, one token at a time.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/options.h"

namespace trainyard {

struct SampledText {
  std::string checkpoint;  // its folder
  uint64_t step = 0;
  std::string text;  // the prompt and what follows; for bytes not always UTF-8
};

// Possible errors: NotFound when there is no checkpoint; DataLoss when none can be trusted; InvalidArgument.
absl::StatusOr<SampledText> SampleText(const SampleOptions& options);

}  // namespace trainyard
