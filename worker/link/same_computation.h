// Decides, by comparing specs, whether a job computes the same function as the job that wrote a checkpoint. A job that
// resumes may change only what does not change the meaning of the weights: docs/decisions/0007-trust-at-the-edges.md.
// Pure. This header includes no protobuf.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/config.h"

namespace trainyard {

struct SpecPair {
  absl::string_view before;  // bytes of the JobSpec of the job that wrote the checkpoint
  absl::string_view now;     // bytes of this job's JobSpec
  bool allow_data_change = false;
};

// Returns which keys in `train` and `parallel` changed and may change; also resources.ranks. A spec that was never
// resolved, like that of an imported model, is compared by the keys that it has. Possible errors: InvalidArgument,
// naming each key that must not change, both its values, and what to do.
absl::StatusOr<std::vector<KeyChange>> CompareComputation(const SpecPair& specs);

}  // namespace trainyard
