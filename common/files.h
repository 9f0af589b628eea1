// File operations that return statuses in place of errno, and writes that survive a crash. Every message names the
// path. All functions are thread-safe: they keep no state.
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

// The status for a failed system call. Its message is `what` and strerror(error). Its code is NotFound,
// PermissionDenied, AlreadyExists, InvalidArgument (the name is too long) or ResourceExhausted (no space, quota,
// descriptors, memory or processes are left) if `error` means one of these; otherwise Unknown.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Reads the whole file. Possible errors: NotFound; PermissionDenied; ResourceExhausted: it is larger than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// Reads standard input from its position to its end. Unlike reading /dev/stdin, this also works for a socket, and for a
// file that this user may not open, but the user who started this program (sudo). Possible errors: ResourceExhausted,
// as for ReadFile.
absl::StatusOr<std::string> ReadStandardInput(uint64_t max_bytes);

// Only the owner may read and write. The default for everything that our programs create.
inline constexpr mode_t kPrivateFileMode = 0600;
inline constexpr mode_t kPrivateFolderMode = 0700;

// Opens a regular file without ever blocking: refuses a FIFO, a device or a folder at the path. `flags` are those of
// open(); O_CLOEXEC is added. The caller closes the descriptor. Possible errors: those of open(); FailedPrecondition:
// the path is not a regular file.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode = kPrivateFileMode);
// ReadFile with the checks of OpenRegularFile: for folders that other users or programs may have written to.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);
// ReadRegularFile for a file whose content is passed on, from a folder that another user may have made: a symbolic link
// there could lead to a private file of this user. Possible errors: also PermissionDenied: the path is a symbolic link
// of another user, to a file that is not that user's. Unavailable: the file has just been replaced.
absl::StatusOr<std::string> ReadFileToPassOn(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// Replaces `path` atomically: temporary name, fsync, rename, fsync of the folder. A crash leaves the old or the new
// file. The file has `mode` minus the umask.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view data, mode_t mode = kPrivateFileMode);

// Makes `path` and its parents (`mode` minus the umask), and syncs the folders that got a new entry. A folder that
// exists keeps its mode.
absl::Status MakeFolders(const std::string& path, mode_t mode = kPrivateFolderMode);
// The folders that MakeFolders would make, innermost first.
std::vector<std::string> MissingFolders(const std::string& path);
absl::Status SyncFolder(const std::string& path);
absl::Status SyncFile(const std::string& path);
// Gives the complete file `temporary` the name `path` unless that is taken: by a rename, or else by a hard link,
// because some file systems support only one of them. Returns false with errno set: EEXIST if the name is taken. The
// caller removes `temporary`, which may remain in any case.
bool NameNewFile(const std::string& temporary, const std::string& path);

bool FileExists(const std::string& path);

// `path` as an absolute path. Removes `.` and `..` from the text; does not follow symbolic links.
std::string AbsolutePath(absl::string_view path, absl::string_view working_directory);
std::string WorkingDirectory();
// The folder of the running program, which also holds its sibling programs.
std::string BinaryFolder();
std::string JoinPath(absl::string_view folder, absl::string_view name);

// An exclusive lock on a file, held until this object is destroyed or the process ends. The file is never removed. The
// lock is on the file that is at the path when the lock is acquired.
class FileLock {
 public:
  // Retries until `wait` has passed. Possible errors: Unavailable: another process holds the lock (the message names
  // the process and its host if the file contains them).
  static absl::StatusOr<std::unique_ptr<FileLock>> Acquire(const std::string& path, absl::Duration wait,
                                                           mode_t mode = kPrivateFileMode);
  // Acquires the lock even if another process holds it, by replacing the file with a new one. The holder does not
  // notice. Use it only if other evidence shows that the holder has lost its right to the lock.
  static absl::StatusOr<std::unique_ptr<FileLock>> Seize(const std::string& path, mode_t mode = kPrivateFileMode);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Whether the locked file is still the one at its path. False: it has been seized or removed.
  bool IsAtPath() const;
  // Whether this lock created the file.
  bool created_file() const { return created_file_; }

 private:
  FileLock(int fd, std::string path, bool created_file)
      : fd_(fd), path_(std::move(path)), created_file_(created_file) {}
  const int fd_;
  const std::string path_;
  const bool created_file_;
};

}  // namespace trainyard
