#include "common/rotated_log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<RotatedLog>> RotatedLog::Open(Options options) {
  auto file = std::unique_ptr<RotatedLog>(new RotatedLog(std::move(options)));
  RETURN_IF_ERROR(file->OpenPath());
  return file;
}

RotatedLog::~RotatedLog() {
  if (fd_ >= 0) close(fd_);
}

absl::Status RotatedLog::OpenPath() {
  const std::string& path = options_.path;
  // Not blocking, so that a pipe without a reader is an error instead of a wait.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open the log file ", path));
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat("the log file ", path, " is not a regular file"));
  }
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  size_ = static_cast<uint64_t>(info.st_size);
  return absl::OkStatus();
}

void RotatedLog::Rotate() {
  const auto name = [this](uint32_t number) {
    return number == 0 ? options_.path : absl::StrCat(options_.path, ".", number);
  };
  // A name that does not exist yet is no error. The oldest file is replaced.
  bool renamed = false;
  for (uint32_t number = options_.max_files; number > 0; --number) {
    renamed = std::rename(name(number - 1).c_str(), name(number).c_str()) == 0;
  }
  // If the file could not be renamed, it is opened again and grows. The next try is after `max_bytes` more bytes,
  // not for the next line, because each try gives the older files new names, and the oldest may be lost.
  if (absl::Status opened = OpenPath(); !opened.ok() || !renamed) size_ = 0;
}

bool RotatedLog::Write(const std::string& line) {
  if (reopen_.exchange(false)) OpenPath().IgnoreError();
  if (options_.max_bytes > 0 && size_ > 0 && size_ + line.size() > options_.max_bytes) Rotate();
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(fd_, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
    size_ += static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace trainyard
