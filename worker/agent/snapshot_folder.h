// The folder in memory where this daemon's trainers keep what they copied for saves (checkpoint/snapshot.h),
// which outlives them: `<root>/trainyard-<uid>-<key of host and state folder>`, for its owner alone. Beside the
// snapshots lie a lock, held while the daemon lives, and a record of whose it is, by which other daemons find what
// nobody will come back for. docs/decisions/0006-saves.md tells who removes what.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/files.h"
#include "common/private_folder.h"

namespace trainyard::agent {

struct SnapshotFolderOptions {
  std::string root;             // where folders of daemons lie; empty: nowhere
  std::string state;            // state folder of the daemon
  bool is_private = false;      // the daemon does not come back: it was started for one run
  bool may_be_on_disk = false;  // for tests where no file system is in memory
};

// Thread-safe.
class SnapshotFolder {
 public:
  // Takes up what an earlier life of the daemon has left, if it has left anything; a daemon that starts no trainer
  // leaves nothing. Possible errors: FailedPrecondition: the root is not in memory, or what lies at the path is not
  // ours; Unavailable: another daemon holds it; others of the system.
  static absl::StatusOr<std::shared_ptr<SnapshotFolder>> Find(const SnapshotFolderOptions& options);
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  const std::string& path() const { return path_; }
  // Makes the folder unless it is there; logout and cleaners may have taken it since. Errors as of Find.
  absl::Status Make();

  // What is kept from here on. True: Sweep is to be called, which nobody has been told yet.
  bool Want(std::set<std::string> jobs);
  // Removes what is of other jobs, as they stand at that moment. May take a while.
  void Sweep();
  // Removes all, and the folder.
  void Remove();

 private:
  SnapshotFolder(std::string path, std::string record) : path_(std::move(path)), record_(std::move(record)) {}

  const std::string path_;
  const std::string record_;
  absl::Mutex make_mu_;                                       // held while the folder is made, which may take seconds
  std::unique_ptr<FileLock> lock_ ABSL_GUARDED_BY(make_mu_);  // null: there is no folder
  std::optional<FileId> id_ ABSL_GUARDED_BY(make_mu_);
  absl::Mutex mu_;
  std::set<std::string> jobs_ ABSL_GUARDED_BY(mu_);
  bool sweep_waits_ ABSL_GUARDED_BY(mu_) = false;
};

// Removes the folders that nobody holds and nobody will come back for: below the root those of this user's private
// daemons, and of daemons of this host whose state folder is no more; and the one that the daemon of this state folder
// had before `path` (empty: it has none now), which it notes there. May hang where a state folder does.
void RemoveAbandonedFolders(const SnapshotFolderOptions& options, const std::string& path);

}  // namespace trainyard::agent
