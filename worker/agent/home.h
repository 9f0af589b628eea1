// What a daemon shares with its trainers outside of memory: the state folder, which the daemon locks as long as it
// runs, the folder of rank folders in it, the sockets, and the programs (programs.h). Each can disappear while the
// daemon runs: systemd removes $XDG_RUNTIME_DIR at logout, a cleaner removes old files, a disk is unmounted, a package
// is upgraded. Every trainer started after that would fail, so the daemon checks once a second, recreates what has
// disappeared, and reports what it cannot recreate.
//
//   ASSIGN_OR_RETURN(auto home, Home::Acquire({.state = "/var/lib/trainyard/h1"}));
//   HomeChecked checked = home->Inspect();   // an event for the core
//
// Thread-safe. Checks run one at a time, and may hang if the disk does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/files.h"
#include "common/private_folder.h"
#include "worker/agent/events.h"
#include "worker/agent/link_listener.h"
#include "worker/agent/programs.h"

namespace trainyard::agent {

class Home {
 public:
  struct Options {
    std::string state;
    // A folder that this user must own: it contains `state` and is in a folder that all users share. Empty: none.
    std::string own_root = {};
    SocketPlaces sockets = SocketPlacesOfThisUser();
    std::vector<std::string> programs = {};  // no trainer is started after one of these files was replaced
  };
  // Creates and locks the state folder and listens. Possible errors: Unavailable: another daemon holds the folder, or
  // no socket can be created. InvalidArgument: the folder is that of a coordinator. FailedPrecondition: the folder is
  // not this user's. Others: it cannot be written.
  static absl::StatusOr<std::shared_ptr<Home>> Acquire(const Options& options);

  // Checks everything and recreates what has disappeared. The state folder is recreated only on the file system that it
  // was on, or where the lock file of a daemon already is: a new folder must not take the place of a disk that is
  // temporarily unmounted.
  HomeChecked Inspect();
  // Does the same before a trainer is started; the next Inspect reports what was recreated. Possible errors:
  // Unavailable: no trainer can be started now; the message says why.
  absl::Status Check();

  const std::string& ranks() const { return ranks_; }
  const std::shared_ptr<LinkListener>& listener() const { return listener_; }

 private:
  explicit Home(const Options& options);
  absl::Status AcquireState(absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReacquireState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Recreate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Listen();

  const Options options_;
  const std::string ranks_;
  const std::string lock_path_;
  const Programs programs_;
  std::shared_ptr<LinkListener> listener_;

  absl::Mutex mu_;
  std::unique_ptr<FileLock> lock_ ABSL_GUARDED_BY(mu_);
  // The identities by which a file that was removed or replaced is detected.
  std::optional<FileId> state_id_ ABSL_GUARDED_BY(mu_);
  std::optional<FileId> ranks_id_ ABSL_GUARDED_BY(mu_);
  std::optional<FileId> lock_id_ ABSL_GUARDED_BY(mu_);
  bool state_is_new_ ABSL_GUARDED_BY(mu_) = false;   // recreated, but not reported yet
  bool socket_is_new_ ABSL_GUARDED_BY(mu_) = false;  // recreated, but not reported yet
};

}  // namespace trainyard::agent
