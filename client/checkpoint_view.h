// Formats checkpoints as text and as JSON for trainctl checkpoint. Pure; ages are relative to `now`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/inventory.h"
#include "checkpoint/verify.h"

namespace trainyard::client {

// An entry of a run folder and the result of inspecting or verifying it.
struct InspectedEntry {
  RunEntry entry;
  bool verified = false;  // every byte was verified; false: only manifest, names and lengths
  bool best = false;      // it has the lowest evaluation loss of the checkpoints in its folder
  VerifiedCheckpoint found = {};
};

// The table of `ls`, followed by entries that are not checkpoints. `holder`: the process that trains in the folder, or
// empty. `columns`: the width of the lines; 0: no limit.
std::string CheckpointTable(const std::vector<InspectedEntry>& all, const std::string& holder, absl::Time now,
                            int columns = 0);
// One JSON object, which includes the problems that were found.
std::string InspectedEntryJson(const InspectedEntry& one);

// Returns whether a resume or an export from a run folder may choose the checkpoint: it has no problem and all its
// values are finite.
bool IsGood(const InspectedEntry& one);
// "step-00000100: good: 2 files, 1.2 MiB", or NOT FINITE with the first such tensor, or DAMAGED with the problems.
std::string VerdictText(const InspectedEntry& one);

// The output of `show`. `with_tensors`: includes each tensor and its pieces.
std::string ManifestView(const InspectedEntry& one, bool with_tensors, int columns = 0);
std::string ManifestJson(const InspectedEntry& one, bool with_tensors);

// {"event":"removed","names":[...],"bytes":N}
std::string RemovedJson(const std::vector<std::string>& names, uint64_t bytes);

}  // namespace trainyard::client
