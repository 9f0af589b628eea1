#include "checkpoint/shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checkpoint/read_error.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::unique_ptr<ShardFile>> ShardFile::Open(const std::string& folder, const ManifestFile& listed) {
  const std::string path = JoinPath(folder, listed.name);
  ASSIGN_OR_RETURN(const int fd, MarkFailedRead(OpenRegularFile(path, O_RDONLY)));
  std::unique_ptr<ShardFile> file(new ShardFile(fd, path, listed));
  // The caller has compared the lengths before (QuickVerifyFiles), but another process may have changed the folder
  // since then.
  struct stat st;
  if (fstat(fd, &st) != 0) return MarkFailedRead(ErrnoStatus(errno, absl::StrCat("cannot inspect ", path)));
  if (static_cast<uint64_t>(st.st_size) != listed.bytes) {
    return absl::DataLossError(absl::StrCat(path, " has changed while it was being read"));
  }
  return file;
}

ShardFile::ShardFile(int fd, std::string path, const ManifestFile& listed)
    : fd_(fd), path_(std::move(path)), bytes_(listed.bytes), hash_(listed.hash) {}

ShardFile::~ShardFile() { close(fd_); }

absl::Status ShardFile::Read(uint64_t at, absl::Span<char> out) {
  if (!verifying()) return ReadBytes(at, out);
  RETURN_IF_ERROR(HashTo(at));
  RETURN_IF_ERROR(ReadBytes(at, out));
  if (const uint64_t end = at + out.size(); end > hashed_) {
    hasher_->Add({out.data() + (hashed_ - at), end - hashed_});
    hashed_ = end;
  }
  return absl::OkStatus();
}

void ShardFile::BeginVerifying() {
  posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // the whole file will be read, mostly in order
  hasher_ = std::make_unique<Hasher>();
}

absl::Status ShardFile::FinishVerifying() {
  RETURN_IF_ERROR(HashTo(bytes_));
  const std::string found = hasher_->Hex();
  hasher_.reset();
  hashed_ = 0;
  if (found == hash_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": expected hash ", hash_, ", found hash ", found));
}

absl::Status ShardFile::ReadBytes(uint64_t at, absl::Span<char> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return MarkFailedRead(ErrnoStatus(errno, absl::StrCat("cannot read ", path_, " at byte ", at)));
    if (n == 0)
      return absl::DataLossError(absl::StrCat(
          path_, " ends at byte ", at, ", before the length in the manifest; it has changed while it was being read"));
    out.remove_prefix(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
    bytes_read_.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

// Hashes the bytes before `at` that are not hashed yet.
absl::Status ShardFile::HashTo(uint64_t at) {
  if (hashed_ >= at) return absl::OkStatus();
  const uint64_t buffer_bytes = std::min(kReadBytes, at - hashed_);
  const auto buffer = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  while (hashed_ < at) {
    const uint64_t length = std::min(buffer_bytes, at - hashed_);
    RETURN_IF_ERROR(ReadBytes(hashed_, {buffer.get(), length}));
    hasher_->Add({buffer.get(), length});
    hashed_ += length;
  }
  return absl::OkStatus();
}

}  // namespace trainyard
