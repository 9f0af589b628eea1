#include "common/files.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/lock_holder.h"
#include "common/status_macros.h"

namespace trainyard {

absl::Status ErrnoStatus(int error, absl::string_view what) {
  std::string message = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EEXIST:
    case ENOTEMPTY:
      return absl::AlreadyExistsError(message);
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:  // from fork: too many processes
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnknownError(message);
  }
}

namespace {

// Closes `fd`. `waits`: waits for data even if `fd` is non-blocking, because another program has made it so.
absl::StatusOr<std::string> ReadToEnd(int fd, const std::string& path, uint64_t max_bytes, bool waits = false) {
  absl::Cleanup close_fd = [fd] { close(fd); };
  std::string data;
  char buffer[1 << 16];
  while (true) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && waits) {
      pollfd readable = {.fd = fd, .events = POLLIN, .revents = 0};
      poll(&readable, 1, -1);
      continue;
    }
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path));
    if (n == 0) return data;
    if (data.size() + static_cast<size_t>(n) > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(path, " is larger than ", max_bytes, " bytes"));
    }
    data.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status NotARegularFileError(const std::string& path, mode_t mode) {
  const char* found = S_ISFIFO(mode) ? "a FIFO" : S_ISDIR(mode) ? "a folder" : S_ISSOCK(mode) ? "a socket" : "a device";
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", found, ", but a file was expected; check the path and what is there"));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  return ReadToEnd(fd, path, max_bytes);
}

absl::StatusOr<std::string> ReadStandardInput(uint64_t max_bytes) {
  const int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "cannot read standard input");
  return ReadToEnd(fd, "standard input", max_bytes, /*waits=*/true);
}

absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode) {
  // Without O_NONBLOCK, opening a FIFO waits for its other end.
  const int fd = open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC, mode);
  const int error = errno;
  struct stat st = {};
  if (fd < 0) {
    // A FIFO without a reader, a socket, or a folder opened for writing.
    const bool is_other_kind = error == ENXIO || error == EISDIR;
    if (is_other_kind && stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
      return NotARegularFileError(path, st.st_mode);
    return ErrnoStatus(error, absl::StrCat("cannot open ", path));
  }
  if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
  close(fd);
  return NotARegularFileError(path, st.st_mode);
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  return ReadToEnd(fd, path, max_bytes);
}

absl::StatusOr<std::string> ReadFileToPassOn(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  struct stat file = {}, named = {};
  // What has the name is inspected after the file was opened, so that an exchange in between is noticed.
  const bool is_known = fstat(fd, &file) == 0 && lstat(path.c_str(), &named) == 0;
  const bool is_link = is_known && S_ISLNK(named.st_mode);
  const bool is_own_link = named.st_uid == geteuid() || named.st_uid == 0;
  const bool is_file = is_known && named.st_dev == file.st_dev && named.st_ino == file.st_ino;
  if (is_file || (is_link && (is_own_link || named.st_uid == file.st_uid))) return ReadToEnd(fd, path, max_bytes);
  close(fd);
  if (!is_link) return absl::UnavailableError(absl::StrCat(path, " has just been replaced; try again"));
  return absl::PermissionDeniedError(absl::StrCat(path, " is a symbolic link of user ", named.st_uid,
                                                  " to a file of user ", file.st_uid,
                                                  ", which may be private; put a copy of the file in its place"));
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view data, mode_t mode) {
  std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", temporary));
  absl::Cleanup remove = [&] { unlink(temporary.c_str()); };
  {
    absl::Cleanup close_fd = [fd] { close(fd); };
    absl::string_view rest = data;
    while (!rest.empty()) {
      ssize_t n = write(fd, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", temporary));
      rest.remove_prefix(static_cast<size_t>(n));
    }
    if (fsync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("cannot sync ", temporary));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot rename ", temporary, " to ", path));
  }
  std::move(remove).Cancel();
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

std::vector<std::string> MissingFolders(const std::string& path) {
  std::vector<std::string> missing;
  std::filesystem::path at = path;
  if (!at.has_filename()) at = at.parent_path();
  for (; !at.empty() && !FileExists(at.string()); at = at.parent_path()) missing.push_back(at.string());
  return missing;
}

absl::Status MakeFolders(const std::string& path, mode_t mode) {
  const std::vector<std::string> missing = MissingFolders(path);
  for (auto folder = missing.rbegin(); folder != missing.rend(); ++folder) {
    if (mkdir(folder->c_str(), mode) == 0 || errno == EEXIST) continue;
    return ErrnoStatus(errno, absl::StrCat("cannot make folder ", path));
  }
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, absl::StrCat("cannot make folder ", path));
  if (!S_ISDIR(st.st_mode)) return ErrnoStatus(ENOTDIR, absl::StrCat("cannot make folder ", path));
  // Syncs each parent that got a new entry, so that the folder survives a loss of power.
  for (const std::string& folder : missing) {
    absl::Status status = SyncFolder(std::filesystem::path(folder).parent_path().string());
    // A parent that may be entered but not read cannot be synced. The folder can be used nevertheless.
    if (!status.ok() && !absl::IsPermissionDenied(status)) return status;
  }
  return absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  std::string folder = path.empty() ? "." : path;
  int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open folder ", folder));
  absl::Cleanup close_fd = [fd] { close(fd); };
  // Some file systems cannot sync a folder and return EINVAL.
  if (fsync(fd) != 0 && errno != EINVAL) return ErrnoStatus(errno, absl::StrCat("cannot sync folder ", folder));
  return absl::OkStatus();
}

absl::Status SyncFile(const std::string& path) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  absl::Cleanup close_fd = [fd] { close(fd); };
  return fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("cannot sync ", path));
}

bool NameNewFile(const std::string& temporary, const std::string& path) {
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) return true;
  return errno != EEXIST && link(temporary.c_str(), path.c_str()) == 0;
}

bool FileExists(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0;
}

std::string AbsolutePath(absl::string_view path, absl::string_view working_directory) {
  std::filesystem::path given{std::string(path)};
  if (given.is_relative()) given = std::filesystem::path(std::string(working_directory)) / given;
  std::string normal = given.lexically_normal().string();
  if (normal.size() > 1) normal = std::string(absl::StripSuffix(normal, "/"));
  return normal;
}

std::string WorkingDirectory() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

std::string BinaryFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return absl::StrCat(absl::StripSuffix(folder, "/"), "/", name);
}

namespace {

// Writes who holds the lock, which others only use in messages. The lock does not need it, and on a full disk a process
// must still acquire the lock, to remove checkpoints.
void WriteHolder(int fd) {
  const std::string text = LockFileText();
  [[maybe_unused]] const ssize_t written = ftruncate(fd, 0) == 0 ? pwrite(fd, text.data(), text.size(), 0) : -1;
}

std::string DescribeHolder(int fd) {
  struct stat file;
  if (fstat(fd, &file) == 0) {
    if (std::string named = LockHolder(file); !named.empty()) return named;
  }
  return HolderInLockFile(fd);
}

// Whether the open file is the one at `path`, which may have been replaced.
bool IsOpenFileAt(int fd, const std::string& path) {
  struct stat open_file;
  struct stat file;
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &file) == 0 && open_file.st_ino == file.st_ino &&
         open_file.st_dev == file.st_dev;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Acquire(const std::string& path, absl::Duration wait, mode_t mode) {
  for (absl::Time deadline = absl::Now() + wait;; absl::SleepFor(absl::Milliseconds(20))) {
    absl::StatusOr<int> opened = OpenRegularFile(path, O_RDWR | O_CREAT | O_EXCL, mode);
    const bool created_file = opened.ok();
    if (absl::IsAlreadyExists(opened.status())) opened = OpenRegularFile(path, O_RDWR | O_CREAT, mode);
    RETURN_IF_ERROR(opened.status()) << "while opening a lock file";
    const int fd = *opened;
    absl::Cleanup close_fd = [fd] { close(fd); };
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (!IsOpenFileAt(fd, path)) continue;
      WriteHolder(fd);
      std::move(close_fd).Cancel();
      return std::unique_ptr<FileLock>(new FileLock(fd, path, created_file));
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, absl::StrCat("cannot lock ", path));
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(path, " is locked by ", DescribeHolder(fd)));
    }
  }
}

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::Seize(const std::string& path, mode_t mode) {
  std::string temporary = absl::StrCat(path, ".new-", getpid());
  int fd = open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", temporary));
  absl::Cleanup undo = [&] {
    unlink(temporary.c_str());
    close(fd);
  };
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) return ErrnoStatus(errno, absl::StrCat("cannot lock ", temporary));
  WriteHolder(fd);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot rename ", temporary, " to ", path));
  }
  std::move(undo).Cancel();
  return std::unique_ptr<FileLock>(new FileLock(fd, path, /*created_file=*/false));
}

bool FileLock::IsAtPath() const { return IsOpenFileAt(fd_, path_); }

FileLock::~FileLock() { close(fd_); }

}  // namespace trainyard
