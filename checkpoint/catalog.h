// The checkpoints of a run folder: which there are, which of them may be trusted, which may go. Called by rank 0, which
// holds the folder's lock; listing is safe from anywhere.
//
// [Note: which checkpoints are removed] `keep` counts back from the one just saved. Those of later steps, which a run
// leaves behind that went back to an older checkpoint, are not counted: they are replaced as the steps come again. One
// beyond `keep` goes only when it is not protected: the loop protects the step that was last confirmed, for a restart
// asks for it. Nor does it go when its step is a multiple of `keep_every`, when somebody reads it, or when those that
// stay all hold values that are not finite and it is the newest that does not.
#pragma once

#include <cstdint>
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
// Held in a run folder by the rank 0 that trains into it (worker/trainer/run_folder.h), and by whoever removes there.
inline constexpr char kRunLockName[] = ".lock";

struct StepFolder {
  uint64_t step = 0;
  std::string path;
};

// Of everything in a folder, sorted; a folder that is not there holds nothing. Possible errors: those of reading it.
absl::StatusOr<std::vector<std::string>> ListNames(const std::string& folder);

// "step-00000100".
std::string StepFolderName(uint64_t step);
// The step of such a name; none for any other name.
std::optional<uint64_t> StepOfFolderName(absl::string_view name);

// Where a save of `generation` writes before it has its name: "<run folder>/step-00000100.g2.partial".
std::string PartialPath(const std::string& run_folder, uint64_t step, uint64_t generation);

// Newest first; not verified. A folder that is not there holds none. Possible errors: those of reading a folder.
absl::StatusOr<std::vector<StepFolder>> ListCheckpoints(const std::string& run_folder);

struct FoundCheckpoint {
  std::unique_ptr<Checkpoint> checkpoint;  // null: none could be trusted
  std::vector<std::string> damaged;        // why newer ones were passed over, a sentence each
};

struct FindOptions {
  std::optional<uint64_t> before_step = {};  // only older ones
  bool every_byte = true;                    // is read; else manifests, names and lengths are looked at
};
// The newest good one. One that holds values which are not finite is passed over as a damaged one is.
absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& run_folder, const FindOptions& options = {});

// Removes a checkpoint or what is left of one: first from its name, so that a crash in the middle leaves a partial, not
// a checkpoint that looks damaged. Possible errors: Unavailable: somebody reads it; those of the file system.
absl::Status RemoveCheckpoint(const std::string& path, FileSystem& file_system);

struct Retention {
  uint64_t keep = 0;        // the newest; 0: all
  uint64_t keep_every = 0;  // besides, every step that is a multiple; 0: none
};

// Removes those of the checkpoints up to `saved_step` that need not stay. Returns the steps removed.
absl::StatusOr<std::vector<uint64_t>> PruneCheckpoints(const std::string& run_folder, uint64_t saved_step,
                                                       const Retention& retention,
                                                       const std::set<uint64_t>& protected_steps,
                                                       FileSystem& file_system);

}  // namespace trainyard
