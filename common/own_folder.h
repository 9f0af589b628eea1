// Folders below those that all users of a host share (/tmp, /var/tmp, /dev/shm). Another user may have put a folder or
// a symbolic link under the name that we would use, so each is looked at before anything is written there. All
// functions are thread-safe in that they keep no state.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

// Which file lies at a path: another one of the same name has another id.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileId&) const = default;
};
// Of what `path` leads to, symbolic links followed; none: nothing is there, or it may not be looked at.
std::optional<FileId> IdOf(const std::string& path);

// Whether `path` is a folder, no symbolic link, that belongs to this user and is closed to all others.
// Possible errors: NotFound: nothing is there. FailedPrecondition: something else is; the message says what.
absl::Status CheckOwnFolder(const std::string& path);

// Makes the folder with mode 0700 where nothing is; its parent must be there. Errors as of CheckOwnFolder, and those of
// mkdir.
absl::Status MakeOwnFolder(const std::string& path);

// Where this user may have a folder for Unix sockets whose path is short.
struct SocketPlaces {
  // $XDG_RUNTIME_DIR. Logout removes it unless the user lingers (loginctl enable-linger). Empty: there is none.
  std::string runtime;
  bool lingers = false;
  std::string shared = "/tmp";
};
SocketPlaces SocketPlacesOfThisUser();

// <runtime>/trainyard where the user lingers, else <shared>/trainyard-<uid>; where another user has taken that name, a
// name that nobody can guess. Possible errors: those of mkdir.
absl::StatusOr<std::string> MakeSocketFolder(const SocketPlaces& places);

}  // namespace trainyard
