#include "worker/agent/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "worker/shim/records.h"

namespace trainyard::agent {
namespace {

// Returns the inode of the file; 0: there is no such file.
ino_t InodeOf(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 ? st.st_ino : 0;
}

bool IsBlank(absl::string_view text) { return text.find_first_not_of(' ') == absl::string_view::npos; }

}  // namespace

LogFile::~LogFile() {
  if (fd_ >= 0) close(fd_);
}

LogFile::LogFile(LogFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      inode_(other.inode_),
      partial_line_(std::move(other.partial_line_)),
      overwrites_(other.overwrites_),
      returned_(other.returned_),
      progress_(std::move(other.progress_)) {}

// Opens the file whose output follows that of the open file. Returns false if there is no such file (yet).
bool LogFile::OpenNext(std::vector<std::string>* lines) {
  std::string rotated = absl::StrCat(path_, shim::kRotatedSuffix);
  ino_t rotated_inode = InodeOf(rotated);
  ino_t current_inode = InodeOf(path_);
  // If there was one rotation since the open file was the current one, the current file follows. If there were more,
  // the rotated file follows, and the output between the open file and the rotated file is lost.
  bool open_rotated = rotated_inode != 0 && rotated_inode != inode_ && (fd_ < 0 || current_inode != inode_);
  if (!open_rotated && (current_inode == 0 || current_inode == inode_)) return false;
  int fd = open(open_rotated ? rotated.c_str() : path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  if (open_rotated && fd_ >= 0) {
    EndLastLine(lines);
    lines->push_back(kMissingOutput);
  }
  struct stat st;
  fstat(fd, &st);
  // As long as the old file is open, its inode number cannot be reused.
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  inode_ = st.st_ino;
  return true;
}

bool LogFile::Read(size_t bytes_max, std::vector<std::string>* lines) {
  char buffer[64 << 10];
  size_t bytes_read = 0;
  bool rotated = false;
  while (bytes_read < bytes_max) {
    ssize_t n = fd_ >= 0 ? read(fd_, buffer, sizeof buffer) : 0;
    if (n > 0) {
      AddLines(absl::string_view(buffer, static_cast<size_t>(n)), lines);
      bytes_read += static_cast<size_t>(n);
      continue;
    }
    if (fd_ >= 0 && !rotated) {
      if (InodeOf(path_) == inode_) break;
      // The end of the file is final only if it is reached after the rotation, so read once more.
      rotated = true;
      continue;
    }
    if (!OpenNext(lines)) break;
    rotated = false;
  }
  return bytes_read > 0;
}

void LogFile::AddLines(absl::string_view data, std::vector<std::string>* lines) {
  while (!data.empty()) {
    if (returned_ && data.front() != '\n' && data.front() != '\r') {
      partial_line_.clear();
      overwrites_ = true;
    }
    returned_ = false;
    const size_t end = data.find_first_of("\n\r");
    const absl::string_view piece = data.substr(0, end);
    const size_t free_bytes = limits::kLogLineBytes - partial_line_.size();
    if (piece.size() > free_bytes || (piece.size() == free_bytes && end == absl::string_view::npos)) {
      partial_line_.append(data.data(), free_bytes);
      data.remove_prefix(free_bytes);
      EndLine(lines);
      continue;
    }
    partial_line_.append(piece.data(), piece.size());
    if (end == absl::string_view::npos) return;
    returned_ = data[end] == '\r';
    if (!returned_) EndLine(lines);
    data.remove_prefix(end + 1);
  }
}

void LogFile::EndLine(std::vector<std::string>* lines) {
  lines->push_back(std::exchange(partial_line_, std::string()));
  overwrites_ = false;
}

void LogFile::EndLastLine(std::vector<std::string>* lines) {
  const bool is_cleared_bar = (overwrites_ || returned_) && IsBlank(partial_line_);
  if (!partial_line_.empty() && !is_cleared_bar) EndLine(lines);
}

void LogFile::Finish(std::vector<std::string>* lines) {
  EndLastLine(lines);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string LogFile::TakeProgress() {
  if (!(overwrites_ || returned_) || IsBlank(partial_line_) || partial_line_ == progress_) return "";
  progress_ = partial_line_;
  return progress_;
}

}  // namespace trainyard::agent
