// The text of the file that `trainctl config` writes, which is read again to check that it describes the draft. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/config_draft.h"

namespace trainyard::client {

// A job file with a comment above each key that a question set. Possible errors: Internal: reading the text gives
// another job than the draft, which is a bug in this program.
absl::StatusOr<std::string> JobFileText(const Draft& draft);

// The same job as a configuration file of Accelerate, whose function load_config_from_file accepts every key of it. The
// text is imported again, and must give the same values of the keys that AccelerateHasKey names. Possible errors:
// InvalidArgument: a combination that Accelerate cannot express; Internal: as above.
absl::StatusOr<std::string> AccelerateText(const Draft& draft);

}  // namespace trainyard::client
