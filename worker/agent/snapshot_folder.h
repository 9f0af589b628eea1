// The folder in memory where this daemon's trainers store snapshots (checkpoint/snapshot.h). It outlives the trainers:
// `<root>/trainyard-<uid>-<key of host and state folder>`, accessible to its owner only. Next to the snapshots are a
// lock, held as long as the daemon runs, and a record of the daemon, by which others detect abandoned folders.
// docs/decisions/0006-saves.md defines who removes what.
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
  std::string root;             // folder in memory in which daemons create their snapshot folders; empty: none
  std::string state;            // state folder of the daemon
  bool is_private = false;      // the daemon was started for one run: no later incarnation needs its snapshots
  bool may_be_on_disk = false;  // for tests on machines without a file system in memory
};

// Thread-safe.
class SnapshotFolder {
 public:
  // Adopts the folder of an earlier incarnation of the daemon, if there is one, but creates none: Make does that before
  // the first trainer is started. Possible errors: FailedPrecondition: the root is not in memory, or what is at the
  // path is not this user's; Unavailable: another daemon holds it; other errors of the system.
  static absl::StatusOr<std::shared_ptr<SnapshotFolder>> Find(const SnapshotFolderOptions& options);
  SnapshotFolder(const SnapshotFolder&) = delete;
  SnapshotFolder& operator=(const SnapshotFolder&) = delete;

  const std::string& path() const { return path_; }
  // Creates the folder unless it exists; logout and cleaners may have removed it. Possible errors: those of Find.
  absl::Status Make();

  // Sets the jobs whose snapshots are kept from now on. Returns true if the caller must schedule a call of Sweep.
  bool SetJobs(std::set<std::string> jobs);
  // Removes the snapshots of all jobs but those of the newest call of SetJobs. May take a while.
  void Sweep();
  // Removes everything, including the folder.
  void Remove();

 private:
  SnapshotFolder(std::string path, std::string record) : path_(std::move(path)), record_(std::move(record)) {}

  const std::string path_;
  const std::string record_;
  absl::Mutex make_mu_;  // held while the folder is created, which may take seconds
  std::unique_ptr<FileLock> lock_ ABSL_GUARDED_BY(make_mu_);  // null: there is no folder
  std::optional<FileId> id_ ABSL_GUARDED_BY(make_mu_);
  absl::Mutex mu_;
  std::set<std::string> jobs_ ABSL_GUARDED_BY(mu_);
  bool sweep_scheduled_ ABSL_GUARDED_BY(mu_) = false;
};

// Removes abandoned folders of this user that no process holds: (1) below the root, those of private daemons, those
// without a record, and those of daemons of this host whose state folder does not exist any more; (2) if the state
// folder records another snapshot folder than `path`, that other folder. Then records `path` (empty: the daemon has no
// snapshot folder now). May hang with the disk of the state folder.
void RemoveAbandonedFolders(const SnapshotFolderOptions& options, const std::string& path);

}  // namespace trainyard::agent
