#include "checkpoint/file_system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

class KernelFile final : public WritableFile {
 public:
  KernelFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~KernelFile() override { close(fd_); }

  absl::Status Append(absl::string_view bytes) override {
    while (!bytes.empty()) {
      ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
  }

  absl::Status StartWriteBack(uint64_t first, uint64_t last) override {
    return SyncRange(first, last, SYNC_FILE_RANGE_WRITE);
  }
  absl::Status AwaitWriteBack(uint64_t first, uint64_t last) override {
    return SyncRange(first, last, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  }

  absl::Status Sync() override {
    if (fsync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("cannot sync ", path_));
    return absl::OkStatus();
  }

 private:
  // A later fsync does not report again what this call has reported, so the caller must treat the error as final.
  absl::Status SyncRange(uint64_t first, uint64_t last, unsigned flags) {
    if (first == last) return absl::OkStatus();  // a length of 0 would mean the whole file
    const off_t at = static_cast<off_t>(first), bytes = static_cast<off_t>(last - first);
    if (sync_file_range(fd_, at, bytes, flags) == 0) return absl::OkStatus();
    if (errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EOPNOTSUPP) return absl::OkStatus();
    return ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
  }

  const int fd_;
  const std::string path_;
};

class KernelFileSystem final : public FileSystem {
 public:
  KernelFileSystem(mode_t file_mode, mode_t folder_mode) : file_mode_(file_mode), folder_mode_(folder_mode) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, file_mode_);
    if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", path));
    return std::make_unique<KernelFile>(fd, path);
  }

  absl::Status MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), folder_mode_) != 0) return ErrnoStatus(errno, absl::StrCat("cannot make folder ", path));
    return absl::OkStatus();
  }

  absl::Status SyncFolder(const std::string& path) override { return trainyard::SyncFolder(path); }

  absl::Status SyncFile(const std::string& path) override { return trainyard::SyncFile(path); }

  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
    if (errno == EEXIST && renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      return absl::OkStatus();
    }
    if (errno != EINVAL && errno != ENOSYS) return RenameError(from, to);
    // NFS and others support neither flag. There `to` is missing for the moment between two renames.
    if (access(from.c_str(), F_OK) != 0) return RenameError(from, to);
    std::string old = absl::StrCat(from, kReplacedSuffix);
    const bool replaces = rename(to.c_str(), old.c_str()) == 0;
    if (rename(from.c_str(), to.c_str()) != 0) {
      absl::Status failed = RenameError(from, to);
      if (replaces) (void)rename(old.c_str(), to.c_str());
      return failed;
    }
    if (replaces && rename(old.c_str(), from.c_str()) != 0) return RenameError(old, from);
    return absl::OkStatus();
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot remove ", path));
    return absl::OkStatus();
  }

 private:
  const mode_t file_mode_;
  const mode_t folder_mode_;

  static absl::Status RenameError(const std::string& from, const std::string& to) {
    return ErrnoStatus(errno, absl::StrCat("cannot rename ", from, " to ", to));
  }
};

}  // namespace

absl::Status WithFreeSpace(absl::Status status, const std::string& path) {
  if (!absl::IsResourceExhausted(status)) return status;
  std::filesystem::path at = path;
  struct stat st, parent;
  while (stat(at.c_str(), &st) != 0) {
    if (!at.has_relative_path()) return status;
    at = at.parent_path();
  }
  struct statvfs space;
  if (statvfs(at.c_str(), &space) != 0) return status;
  // Go up to the mount point.
  while (at.has_relative_path() && stat(at.parent_path().c_str(), &parent) == 0 && parent.st_dev == st.st_dev) {
    at = at.parent_path();
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "; the file system at ", at.string(), " has ",
                                                  space.f_bavail * space.f_frsize, " of ",
                                                  space.f_blocks * space.f_frsize, " bytes free"));
}

absl::Status PublishFolder(const std::string& from, const std::string& to, FileSystem& file_system) {
  RETURN_IF_ERROR(file_system.RenameOrExchange(from, to));
  const std::string parent = std::filesystem::path(to).parent_path().string();
  return file_system.SyncFolder(parent.empty() ? "." : parent);
}

FileSystem& FileSystem::Real() {
  static FileSystem& real = *new KernelFileSystem(kPrivateFileMode, kPrivateFolderMode);
  return real;
}

FileSystem& FileSystem::ForOthers() {
  static FileSystem& for_others = *new KernelFileSystem(0666, 0777);
  return for_others;
}

}  // namespace trainyard
