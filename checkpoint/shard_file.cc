#include "checkpoint/shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<ShardFile>> ShardFile::Open(const std::string& folder, const ManifestFile& listed) {
  const std::string path = JoinPath(folder, listed.name);
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  std::unique_ptr<ShardFile> file(new ShardFile(fd, path, listed));
  // The file that was opened may differ from the one that was checked, if another process changes the folder meanwhile.
  struct stat st;
  if (fstat(fd, &st) != 0 || static_cast<uint64_t>(st.st_size) != listed.bytes) {
    return absl::DataLossError(absl::StrCat(path, " is changing while it is read"));
  }
  return file;
}

ShardFile::ShardFile(int fd, std::string path, const ManifestFile& listed)
    : fd_(fd), path_(std::move(path)), bytes_(listed.bytes), hash_(listed.hash) {}

ShardFile::~ShardFile() { close(fd_); }

absl::Status ShardFile::Read(uint64_t at, absl::Span<char> out) {
  if (!vouched()) return ReadBytes(at, out);
  RETURN_IF_ERROR(PassTo(at));
  RETURN_IF_ERROR(ReadBytes(at, out));
  if (const uint64_t end = at + out.size(); end > passed_) {
    whole_->Add({out.data() + (passed_ - at), end - passed_});
    passed_ = end;
  }
  return absl::OkStatus();
}

void ShardFile::Vouch() {
  posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // it will be read whole, mostly in order
  whole_ = std::make_unique<Hasher>();
}

absl::Status ShardFile::FinishVouching() {
  RETURN_IF_ERROR(PassTo(bytes_));
  const std::string found = whole_->Hex();
  whole_.reset();
  passed_ = 0;
  if (found == hash_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": expected hash ", hash_, ", found hash ", found));
}

absl::Status ShardFile::ReadBytes(uint64_t at, absl::Span<char> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::DataLossError(absl::StrCat("cannot read ", path_, " at byte ", at, ": ", strerror(errno)));
    if (n == 0) return absl::DataLossError(absl::StrCat(path_, " ends at byte ", at, "; it is changing"));
    out.remove_prefix(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
    bytes_read_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

// Hashes the bytes before `at` that were not read.
absl::Status ShardFile::PassTo(uint64_t at) {
  if (passed_ >= at) return absl::OkStatus();
  const uint64_t most = std::min(kReadBytes, at - passed_);
  const auto buffer = std::make_unique_for_overwrite<char[]>(most);
  while (passed_ < at) {
    const uint64_t length = std::min(most, at - passed_);
    RETURN_IF_ERROR(ReadBytes(passed_, {buffer.get(), length}));
    whole_->Add({buffer.get(), length});
    passed_ += length;
  }
  return absl::OkStatus();
}

}  // namespace trainyard
