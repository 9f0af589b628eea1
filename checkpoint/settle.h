// Cleans up a run folder when a generation claims it: makes valid partial folders checkpoints, and removes other
// partial folders, temporary files and what interrupted removals left. The caller is rank 0, which holds the folder's
// lock.
//
// [Note: which partials are valid] If rank 0's host is cut off, rank 0 may still write after the next generation has
// claimed the folder. A partial that is complete at that moment is newer than anything the new generation has, so it
// becomes a checkpoint. A partial that an earlier generation completes later is not part of the run's history.
// Therefore the folder records the job and the generation that settled its partials last, and only partials of that job
// whose generation is not below the recorded generation are valid. A partial that the coordinator has granted is always
// valid.
#pragma once

#include <cstdint>
#include <functional>
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
  std::string job_id;  // of the job that claims the folder
  // The job and the generation that settled the partials of this folder last. None: no readable record, and all
  // partials of the job that claims the folder are valid.
  std::optional<JobGeneration> settled = {};
  // Hashes of the manifests of saves that the coordinator has granted.
  std::set<std::string> granted = {};
  // False: valid partials become checkpoints, and nothing is removed; a damaged checkpoint that one of them replaces
  // gets the name of the partial. Used for a job that may still be refused.
  bool removes = true;
};

// Returns why a complete partial with this manifest is not valid, "is of job x, ..."; empty if it is. Pure.
std::string WhyNotValid(const Manifest& manifest, const std::string& manifest_hash, const SettleOptions& options);

// Makes each valid and undamaged partial a checkpoint, unless its step has an undamaged one already. Removes all other
// partials and the temporary files of processes that no longer run. Returns a sentence for each partial that becomes a
// checkpoint, is removed or cannot be removed. Removing is best effort, because a rank of an earlier generation may
// still write.
// Fails if the folder cannot be synced or listed, or if a valid partial cannot be synced or renamed; with Unimplemented
// if a later version of the program wrote a partial or the checkpoint that it would replace; with a failed read
// (read_error.h), because what cannot be read may be good and is neither removed nor replaced.
absl::StatusOr<std::vector<std::string>> SettlePartials(const std::string& run_folder, const SettleOptions& options,
                                                        FileSystem& file_system);

// After SettlePartials: removes partials of generations other than `generation`, and what interrupted removals left.
// Best effort; returns a sentence for each. `may_remove`: as for PruneCheckpoints.
std::vector<std::string> SweepPartials(const std::string& run_folder, uint64_t generation, FileSystem& file_system,
                                       const std::function<absl::Status()>& may_remove = nullptr);

// Renames the partial first, so that a process that still writes there by path fails, then removes it. Fails with
// errors of the file system; what is left is a partial, for a later sweep.
absl::Status RemovePartial(const std::string& partial, FileSystem& file_system);

}  // namespace trainyard
