// What a daemon and its trainers share outside of their memory: the state folder, locked for the daemon's life, with
// the folder of rank folders in it, and the sockets. Each can vanish while the daemon lives: systemd removes
// $XDG_RUNTIME_DIR at logout, a cleaner takes what looks old, a disk is unmounted. Without them every trainer that is
// started here would fail, so the daemon looks once a second, makes again what is gone, and reports what it cannot
// make.
//
//   ASSIGN_OR_RETURN(auto home, Home::Take({.state = "/var/lib/trainyard/h1"}));
//   HomeLooked looked = home->Look();   // an event for the core
//
// Thread-safe: one look at a time, which may hang where the disk does.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/files.h"
#include "common/private_folder.h"
#include "worker/agent/events.h"
#include "worker/agent/link_listener.h"

namespace trainyard::agent {

class Home {
 public:
  struct Options {
    std::string state;
    // A folder above `state` that all users share the parent of; it must be this user's alone. Empty: none.
    std::string own_root = {};
    SocketPlaces sockets = SocketPlacesOfThisUser();
  };
  // Makes and locks the state folder and listens. Possible errors: Unavailable: another daemon holds the folder, or no
  // socket can be made. FailedPrecondition: it is not this user's. Others: it cannot be written.
  static absl::StatusOr<std::shared_ptr<Home>> Take(const Options& options);

  // Looks at all of it, and makes again what is gone. The file system must be the one that the folder lay on, or one
  // that has been a daemon's state folder: a disk that is only away must not be hidden by a folder in its place.
  HomeLooked Look();
  // The same, for who only wants to start a trainer: what is made again is told by the next Look. Possible errors:
  // Unavailable: the trouble.
  absl::Status Check();

  const std::string& ranks() const { return ranks_; }
  const std::shared_ptr<LinkListener>& listener() const { return listener_; }

 private:
  explicit Home(const Options& options);
  absl::Status TakeState(absl::Duration patience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReacquireState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string Recreate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasState() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Listen();

  const Options options_;
  const std::string ranks_;
  const std::string lock_path_;
  std::shared_ptr<LinkListener> listener_;

  absl::Mutex mu_;
  std::unique_ptr<FileLock> lock_ ABSL_GUARDED_BY(mu_);
  std::optional<FileId> state_id_ ABSL_GUARDED_BY(mu_);
  std::optional<FileId> ranks_id_ ABSL_GUARDED_BY(mu_);
  std::optional<FileId> lock_id_ ABSL_GUARDED_BY(mu_);
  bool state_is_new_ ABSL_GUARDED_BY(mu_) = false;  // and that was not told yet
  bool socket_is_new_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard::agent
