// Converts the bytes of a resolved JobSpec to plain values. This header includes no protobuf, so that files that
// include torch may include it. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/config.h"

namespace trainyard {

// Possible errors: InvalidArgument if the bytes are not a JobSpec, lack a value that resolving must have decided, or
// have a value of an enum that only a newer version knows; the message names the key.
absl::StatusOr<TrainConfig> ConfigFromSpec(absl::string_view spec_bytes);

// Reads only the model, the precision, and of the data the text, the JSONL, its fields and the tokenizer's path; all
// other values keep the defaults of TrainConfig. For specs of checkpoints: the spec of a checkpoint that was imported,
// not written by a job, has a model, a precision and perhaps a tokenizer's path, but no data.
absl::StatusOr<TrainConfig> ModelConfigFromSpec(absl::string_view spec_bytes);

}  // namespace trainyard
