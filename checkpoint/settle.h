// What lies in a run folder besides checkpoints when somebody takes it: partial folders, temporary files, folders that
// were being removed. Called by rank 0, which holds the folder's lock.
//
// [Note: whose partials count] Rank 0 of a host that is cut off may go on writing after the next generation has taken
// the folder. What is complete when the folder is taken is newer than anything the new generation has, and gets its
// name; what is completed later by those who were fenced off is not part of the run's history any more. So the folder
// says up to whom partials have been settled, and only those of that very job, not of an earlier generation, count.
// What was granted counts in any case: the coordinator knows it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"

namespace trainyard {

struct JobGeneration {
  std::string job_id;
  uint64_t generation = 0;
  bool operator==(const JobGeneration&) const = default;
};

struct SettleOptions {
  std::string job_id;  // whose rank 0 settles
  // Up to whom partials in this folder have been settled. None: nothing that can be read says so, and all of this job
  // count.
  std::optional<JobGeneration> settled = {};
  // Hashes of manifests that the coordinator has granted.
  std::set<std::string> granted = {};
  // False: what counts gets its name, and nothing is removed. For a job that may still be refused.
  bool removes = true;
};

// Empty: a complete partial with this manifest counts; else the reason why not, "it is of job x, ...". Pure.
std::string WhyNotSettled(const Manifest& manifest, const std::string& manifest_hash, const SettleOptions& options);

// A partial that counts and verifies gets its name, where there is no checkpoint of that step or a damaged one; all
// others are removed, and so are temporary files of processes that are gone. Returns a sentence for each partial.
// Removing is best effort, and what stays is told: a rank that was fenced off may still write. Possible errors: those
// of listing the folder and of giving a name.
absl::StatusOr<std::vector<std::string>> SettlePartials(const std::string& run_folder, const SettleOptions& options,
                                                        FileSystem& file_system);

// Once partials are settled: removes those of other generations than `generation`, and what interrupted removals left.
// Best effort; returns a sentence for each.
std::vector<std::string> SweepPartials(const std::string& run_folder, uint64_t generation, FileSystem& file_system);

// First from its name, so that whoever still writes there by path fails, then the rest. Possible errors: those of the
// file system; what is left is a partial, to be swept another time.
absl::Status RemovePartial(const std::string& partial, FileSystem& file_system);

}  // namespace trainyard
