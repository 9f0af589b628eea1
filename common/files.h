// Files, with statuses in place of errno, and writes that survive a crash. Every message names the path.
// All functions are thread-safe in that they keep no state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

// The status of a failed system call: `what` and strerror(error). NotFound, PermissionDenied, AlreadyExists and
// ResourceExhausted (disk full, quota) where errno says so; otherwise Unknown.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Whole file. Possible errors: NotFound; PermissionDenied; ResourceExhausted when it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// What only the owner may read and write: what programs make is, unless they say otherwise.
inline constexpr mode_t kPrivateFileMode = 0600;
inline constexpr mode_t kPrivateFolderMode = 0700;

// Opens what should be a file, and never waits for it: a FIFO, a device or a folder in its place is refused. `flags` as
// of open(); O_CLOEXEC is added. The caller closes the descriptor. Possible errors: those of open();
// FailedPrecondition: something else than a regular file lies there.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode = kPrivateFileMode);
// ReadFile of what OpenRegularFile opens: for folders that others may have written to.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// Replaces `path` at once: temporary name, fsync, rename, fsync of the folder. A crash leaves the old or the new file.
// The file has `mode` less the umask.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view data, mode_t mode = kPrivateFileMode);

// Makes `path` and its parents (`mode` less the umask), and syncs the folders that got a new entry. A folder that is
// there keeps its mode.
absl::Status MakeFolders(const std::string& path, mode_t mode = kPrivateFolderMode);
// The folders that MakeFolders would make, the innermost first.
std::vector<std::string> MissingFolders(const std::string& path);
absl::Status SyncFolder(const std::string& path);

bool FileExists(const std::string& path);

// `path` as an absolute one, `.` and `..` removed by text alone (no symbolic link is followed).
std::string AbsolutePath(absl::string_view path, absl::string_view working_directory);
std::string WorkingDirectory();
// Folder of the running program: where its sibling binaries lie.
std::string BinaryFolder();
std::string JoinPath(absl::string_view folder, absl::string_view name);

// An exclusive lock on a file, held until this is destroyed or the process ends. The file stays. What is locked is the
// file that lies at the path when the lock is taken.
class FileLock {
 public:
  // Tries until `wait` has passed. Possible errors: Unavailable when another process holds it (the message names its
  // pid where the file tells it).
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path, absl::Duration wait,
                                                           mode_t mode = kPrivateFileMode);
  // Takes the lock whoever holds it, by putting a file of its own in the other's place. The holder is not told: only
  // for locks of which something else says that the holder's time is over.
  static absl::StatusOr<std::unique_ptr<FileLock>> Seize(const std::string& path, mode_t mode = kPrivateFileMode);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Whether the file that is locked is still the one at its path: it may have been seized, or removed.
  bool LiesAtPath() const;
  // Whether there was no such file before.
  bool made() const { return made_; }

 private:
  FileLock(int fd, std::string path, bool made) : fd_(fd), path_(std::move(path)), made_(made) {}
  const int fd_;
  const std::string path_;
  const bool made_;
};

// A folder for Unix sockets whose path is short whatever the state folder is, which logout does not remove and other
// users cannot enter; MakeSocketFolder in common/own_folder.h says which.
absl::StatusOr<std::string> SocketFolder();

}  // namespace trainyard
