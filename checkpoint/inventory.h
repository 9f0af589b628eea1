// What lies in a run folder, for a person who looks at it or tidies it up without a job: checkpoints, partial folders,
// and what crashes left. Listing changes nothing and takes no lock. Removing takes the run folder's lock, so it never
// meets a save, and asks each reader's lease (lease.h); it leaves a good checkpoint, whatever it is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/file_system.h"

namespace trainyard {

struct RunEntry {
  enum class Kind {
    kCheckpoint,  // step-N
    kPartial,     // step-N....partial: being written, being removed, or left by a crash
    kOrphan,      // a temporary file that a crash left
  };
  Kind kind = Kind::kCheckpoint;
  std::string name = {};
  std::string path = {};
  std::optional<uint64_t> step = {};  // none: an orphan, or a partial whose name does not tell
  uint64_t size_bytes = 0;            // of all that it holds
  absl::Time modified = {};
};

// Checkpoints newest first, then partials, then orphans, by name. Possible errors: NotFound, and others of reading a
// folder.
absl::StatusOr<std::vector<RunEntry>> ListRunFolder(const std::string& run_folder);

// Who holds the run folder's lock, "process 123"; empty: nobody does.
std::string RunFolderHolder(const std::string& run_folder);

// Removes the entries of these names. Possible errors, before anything is removed: NotFound: there is no such entry;
// FailedPrecondition: a job trains into the folder, one of them is being read, or no good checkpoint would be left
// where one of them is good. Later: those of the file system.
absl::Status RemoveFromRunFolder(const std::string& run_folder, const std::vector<std::string>& names,
                                 FileSystem& file_system);

}  // namespace trainyard
