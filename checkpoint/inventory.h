// Lists and removes the content of a run folder without a job: checkpoints, partial folders and files left by crashes.
// Listing changes nothing and acquires no lock. Removing acquires the run folder's lock, so that no save runs
// meanwhile, and checks for readers (lease.h); it never removes the last good checkpoint.
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
    kPartial,     // step-*.partial: being written, being removed, or left by a crash
    kOrphan,      // a temporary file or a replaced checkpoint that a crash left
  };
  Kind kind = Kind::kCheckpoint;
  std::string name = {};
  std::string path = {};
  std::optional<uint64_t> step = {};  // none: an orphan, or a partial whose name does not begin with step-N.
  uint64_t size_bytes = 0;            // of everything in it
  absl::Time modified = {};
};

// Returns checkpoints, then partials, each with the newest step first, then orphans by name. Possible errors: NotFound:
// there is no such folder. Others: those of reading a folder.
absl::StatusOr<std::vector<RunEntry>> ListRunFolder(const std::string& run_folder);

// Returns the process that holds the run folder's lock: "process 123 on host w1", or "another process" if the lock does
// not name it; empty if there is none. If no process holds the lock, this acquires a shared lock for a moment.
std::string RunFolderHolder(const std::string& run_folder);

// Removes the entries with these names. Before anything is removed, it fails with NotFound if there is no such entry,
// and with FailedPrecondition if another process holds the folder's lock, an entry is being read, or the last good
// checkpoint would be removed. If the file system fails later, some of the entries may have been removed.
absl::Status RemoveFromRunFolder(const std::string& run_folder, const std::vector<std::string>& names,
                                 FileSystem& file_system);

}  // namespace trainyard
