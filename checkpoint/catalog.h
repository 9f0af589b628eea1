// The checkpoints of a run folder: lists them, finds the newest one that can be trusted, removes old ones. The caller
// of a function that changes the folder holds the folder's lock (rank 0 does). Listing needs no lock.
//
// [Note: which checkpoints are removed] `keep` counts back from `newest_step`, which for rank 0 is the newest step that
// the coordinator has confirmed. Checkpoints of later steps, which a run leaves when it resumes from an older one, are
// not counted, because they are replaced when the run reaches their steps again. A checkpoint beyond `keep` is retained
// if its step is in `protected_steps`, if its step is a multiple of `keep_every`, while a process reads it, if it is
// the newest whose values are all finite, and, with `keep_best`, if it is the best up to `newest_step`.
//
// The best checkpoint is the one whose manifest has the lowest `evaluation.loss` among those that were evaluated on the
// same data as the newest one and that no later generation of the job has abandoned; if losses are equal, the oldest.
// A checkpoint with values that are not finite is never the best.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/reader.h"

namespace trainyard {

inline constexpr char kPartialSuffix[] = ".partial";
// A lock file in a run folder, held by the rank 0 that trains there (worker/trainer/run_folder.h) and by any process
// that removes checkpoints there.
inline constexpr char kRunLockName[] = ".lock";

struct StepFolder {
  uint64_t step = 0;
  std::string path;
};

// Returns the names of everything in a folder, sorted; none if the folder does not exist. Fails if it cannot be read.
absl::StatusOr<std::vector<std::string>> ListNames(const std::string& folder);

// "step-00000100".
std::string StepFolderName(uint64_t step);
// Returns the step of such a name, none for any other name.
std::optional<uint64_t> StepOfFolderName(absl::string_view name);

// The folder in which a save of `generation` writes until it is complete: "<run folder>/step-00000100.g2.partial".
std::string PartialPath(const std::string& run_folder, uint64_t step, uint64_t generation);

// What the name of such a folder, "step-00000100.g2.partial", says.
struct PartialName {
  uint64_t step = 0;
  uint64_t generation = 0;
};
// Returns nullopt for a partial that is being removed (".swept-...", ".pruned"), and for a name that no save creates.
std::optional<PartialName> SaveOfPartialName(absl::string_view name);

// Returns the checkpoints, newest first, without verifying them; none if the folder does not exist. Fails if the folder
// cannot be read.
absl::StatusOr<std::vector<StepFolder>> ListCheckpoints(const std::string& run_folder);

struct FoundCheckpoint {
  std::unique_ptr<Checkpoint> checkpoint;  // null: none can be trusted
  std::vector<std::string> damaged;        // why newer ones were skipped, a sentence each
};

struct FindOptions {
  std::optional<uint64_t> before_step = {};  // only earlier steps
  bool verify_bytes = true;                  // false: only manifests, names and lengths are checked
};
// Finds the newest checkpoint that is undamaged and contains only finite values. Possible errors: Unimplemented: a
// later version of the program wrote the newest checkpoint that may be undamaged, and this version cannot verify it;
// a failed read (read_error.h), of the folder or of the newest checkpoint that may be undamaged.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& run_folder, const FindOptions& options = {});

// The name that stands for the best checkpoint where a checkpoint is chosen: <run folder>/best.
inline constexpr char kBestName[] = "best";

// Returns the best checkpoint of a run folder, by its manifests alone; none if no usable checkpoint has a finite
// loss of an evaluation. Fails if the folder or a manifest cannot be read.
absl::StatusOr<std::optional<StepFolder>> FindBest(const std::string& run_folder);

// Returns the path of the best checkpoint if `path` is <run folder>/best and no such file exists, else `path` itself.
// Possible errors: NotFound: no checkpoint there was evaluated; those of FindBest.
absl::StatusOr<std::string> ResolveBest(const std::string& path);

// Opens the checkpoint at the path that ResolveBest returns for `given`; if that path is a run folder, the checkpoint
// that FindCheckpoint finds there. Adds to `skipped` a sentence for each newer checkpoint that cannot be used. Fails
// with NotFound if there is no checkpoint, with DataLoss if none can be used, with Unimplemented if a later version of
// the program wrote it, and with a failed read (read_error.h).
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpointOrNewest(const std::string& given,
                                                                   std::vector<std::string>& skipped);

// Removes a checkpoint, or the remains of one. Renames it first, so that a crash in the middle leaves a partial folder
// and no damaged checkpoint. Fails with Unavailable if a process reads it, and with errors of the file system.
absl::Status RemoveCheckpoint(const std::string& path, FileSystem& file_system);

struct Retention {
  uint64_t keep = 0;        // the number of newest checkpoints; 0: all
  uint64_t keep_every = 0;  // also every step that is a multiple of this; 0: none
  bool keep_best = false;   // also the best one

  bool IsMilestone(uint64_t step) const { return keep_every > 0 && step % keep_every == 0; }
};

// Removes the checkpoints up to `newest_step` that need not be retained. Returns their steps. Calls `may_remove`, if it
// is not null, right before each removal, because removals may take minutes, in which a later generation may claim the
// folder; an error of `may_remove` ends the call. A checkpoint whose manifest cannot be read is retained if it may be
// the best; the call fails if the manifest is needed to find out which one is.
absl::StatusOr<std::vector<uint64_t>> PruneCheckpoints(const std::string& run_folder, uint64_t newest_step,
                                                       const Retention& retention,
                                                       const std::set<uint64_t>& protected_steps,
                                                       FileSystem& file_system,
                                                       const std::function<absl::Status()>& may_remove = nullptr);

}  // namespace trainyard
