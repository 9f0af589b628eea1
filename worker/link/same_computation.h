// Whether a job computes the function that a checkpoint was made with, by their specs. What a job may change when it
// goes on is a matter of what the weights mean: docs/decisions/0007-trust-at-the-edges.md. Pure; protobuf stays inside.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/config.h"

namespace trainyard {

struct SpecPair {
  absl::string_view before;  // bytes of the JobSpec that the checkpoint was made with
  absl::string_view now;
  bool allow_data_change = false;
};

// The keys of `train`, `parallel` and `resources.ranks` that are not as they were, all of which may differ. A spec that
// no job has resolved, as that of an imported model, is compared by the keys that it has. Possible errors:
// InvalidArgument, naming each key that must not differ, both its values, and what to do.
absl::StatusOr<std::vector<KeyChange>> CompareComputation(const SpecPair& specs);

}  // namespace trainyard
