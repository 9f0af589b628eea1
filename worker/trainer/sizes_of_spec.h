// Reads the model of the job that wrote a checkpoint from the spec in its manifest. Specs are protobuf messages, which
// the engine does not know, so main.cc passes this function in.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model_sizes.h"

namespace trainyard {

// Fails with InvalidArgument if the bytes are not a spec that describes a model. Null: specs are not read.
using SizesOfSpec = std::function<absl::StatusOr<ModelSizes>(absl::string_view spec_bytes)>;

}  // namespace trainyard
