// Converts the bytes of a resolved JobSpec to plain values. No protobuf in this header, so that files with torch may
// include it. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/config.h"

namespace trainyard {

// Possible errors: InvalidArgument if the bytes are not a JobSpec or lack a value that resolving must have decided; the
// message names the key.
absl::StatusOr<TrainConfig> ConfigFromSpec(absl::string_view spec_bytes);

// Reads model and precision only; the rest is as in an empty job. For checkpoints that no job of Trainyard wrote.
absl::StatusOr<TrainConfig> ModelConfigFromSpec(absl::string_view spec_bytes);

}  // namespace trainyard
