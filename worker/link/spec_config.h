// From the resolved JobSpec's bytes to plain values; no protobuf in this header, so that files with torch may include
// it. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/config.h"

namespace trainyard {

// Possible errors: InvalidArgument when the bytes are no JobSpec or lack what resolving must have decided; the message
// names the key.
absl::StatusOr<TrainConfig> ConfigFromSpec(absl::string_view spec_bytes);

// Model and precision alone, all else as in an empty job: what a checkpoint tells that was not made by a job of ours.
absl::StatusOr<TrainConfig> ModelConfigFromSpec(absl::string_view spec_bytes);

}  // namespace trainyard
