// Reads one file of a checkpoint through an open handle, which is not affected if the file is renamed. After
// BeginVerifying, the hash of the whole file is computed from the bytes as they are read: bytes that are requested in
// order are read once, and skipped bytes are read for the hash only. Thread-safe until BeginVerifying is called, and
// not afterwards.
//
//   ASSIGN_OR_RETURN(auto file, ShardFile::Open(folder, listed));
//   file->BeginVerifying();
//   RETURN_IF_ERROR(file->Read(first_byte, out));
//   RETURN_IF_ERROR(file->FinishVerifying());
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/manifest.h"
#include "common/hash.h"

namespace trainyard {

// The number of bytes of a file that are in memory at a time.
inline constexpr uint64_t kReadBytes = 1 << 20;

class ShardFile {
 public:
  // Fails with a failed read (read_error.h) or the errors of OpenRegularFile if the file cannot be opened, and with
  // DataLoss if its length differs from `listed`.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(const std::string& folder, const ManifestFile& listed);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  const std::string& path() const { return path_; }
  // The bytes of all reads so far, including those for the hash.
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

  // Fails with DataLoss if the file has become shorter, and with a failed read (read_error.h).
  absl::Status Read(uint64_t at, absl::Span<char> out);

  // From now on hashes the file while it is read.
  void BeginVerifying();
  bool verifying() const { return hasher_ != nullptr; }
  // Fails with DataLoss if any byte of the file has changed, including bytes that were not read before, and with the
  // errors of Read.
  absl::Status FinishVerifying();

 private:
  ShardFile(int fd, std::string path, const ManifestFile& listed);
  absl::Status ReadBytes(uint64_t at, absl::Span<char> out);
  absl::Status HashTo(uint64_t at);

  const int fd_;
  const std::string path_;
  const uint64_t bytes_;
  const std::string hash_;
  std::atomic<uint64_t> bytes_read_ = 0;
  std::unique_ptr<Hasher> hasher_;  // of the bytes before hashed_; null: not verifying
  uint64_t hashed_ = 0;
};

}  // namespace trainyard
