// Private folders inside those that all users of a host share (/tmp, /var/tmp, /dev/shm). Another user may have created
// a folder or a symbolic link with the name that we want to use, so each folder is checked before anything is written
// to it. All functions are thread-safe: they keep no state.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trainyard {

// Identifies a file. Another file that replaces it at the same path has another id.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileId&) const = default;
};
// The id of the file at `path`, following symbolic links. None if there is no file, or it is not accessible.
std::optional<FileId> IdOf(const std::string& path);

// Checks that `path` is a folder, not a symbolic link, that belongs to this user and is closed to all others.
// Possible errors: NotFound: nothing is there. FailedPrecondition: something else is there; the message says what.
absl::Status CheckPrivateFolder(const std::string& path);

// Makes the folder with mode 0700 unless it exists; its parent must exist. Possible errors: those of
// CheckPrivateFolder and of mkdir.
absl::Status MakePrivateFolder(const std::string& path);

// Where this user may have a folder for Unix sockets, whose paths must be short.
struct SocketPlaces {
  // $XDG_RUNTIME_DIR. Logout removes it unless the user lingers (loginctl enable-linger). Empty: it is not set.
  std::string runtime;
  bool lingers = false;
  std::string shared = "/tmp";
};
SocketPlaces SocketPlacesOfThisUser();

// <runtime>/trainyard if the user lingers and the path is usable and short, else <shared>/trainyard-<uid>. If something
// else than a private folder of this user has that name, makes one with a random name. Possible errors: those of mkdir.
absl::StatusOr<std::string> MakeSocketFolder(const SocketPlaces& places);

// MakeSocketFolder for this user. The path of the folder is short, however long that of the state folder is; logout
// does not remove the folder, and other users cannot enter it.
absl::StatusOr<std::string> SocketFolder();

}  // namespace trainyard
