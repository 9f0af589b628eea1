// What trainctl checkpoint says of a checkpoint, for people and as JSON. Pure, but for the age, which is against `now`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/inventory.h"
#include "checkpoint/verify.h"

namespace trainyard::client {

// An entry of a run folder and what a look at it, or its verification, has found.
struct LookedAt {
  RunEntry entry;
  bool verified = false;  // every byte, not only manifest, names and lengths
  VerifiedCheckpoint found = {};
};

// The table of `ls`, and below it what is no checkpoint. `holder`: who trains into the folder, or empty. `columns`: see
// Table.
std::string CheckpointTable(const std::vector<LookedAt>& all, const std::string& holder, absl::Time now,
                            int columns = 0);
// One JSON object; problems included.
std::string CheckpointLine(const LookedAt& one);

// A run, and export of its run folder, would take it: it has no problem, and its values are finite.
bool IsGood(const LookedAt& one);
// "step-00000100: good: 2 files, 1.2 MiB", or its problems, a line each.
std::string VerdictText(const LookedAt& one);

// Everything that `show` tells. `with_tensors`: each tensor and its pieces too.
std::string ManifestView(const LookedAt& one, bool with_tensors, int columns = 0);
std::string ManifestJson(const LookedAt& one, bool with_tensors);

// {"event":"removed","names":[...],"bytes":N}
std::string RemovedJson(const std::vector<std::string>& names, uint64_t bytes);

}  // namespace trainyard::client
