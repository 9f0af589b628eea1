// Reads one file of a checkpoint through an open handle, which is not affected if the file is renamed. After Vouch, the
// hash of the whole file is computed from the bytes as they are read: bytes read in order are read once, skipped bytes
// are read for the hash only. Thread-safe without Vouch; not thread-safe after it.
//
//   ASSIGN_OR_RETURN(auto file, ShardFile::Open(folder, listed));
//   file->Vouch();
//   RETURN_IF_ERROR(file->Read(first_byte, out));
//   RETURN_IF_ERROR(file->FinishVouching());
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
  // Fails with the errors of opening the file, and with DataLoss if its length differs from `listed`.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(const std::string& folder, const ManifestFile& listed);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  const std::string& path() const { return path_; }
  // The bytes of all reads so far, including those for the hash.
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

  // Fails with DataLoss, also if the disk reports an error: a file that cannot be read counts as damaged.
  absl::Status Read(uint64_t at, absl::Span<char> out);

  void Vouch();
  bool vouched() const { return whole_ != nullptr; }
  // Fails with DataLoss if any byte of the file has changed, including bytes that were not read before.
  absl::Status FinishVouching();

 private:
  ShardFile(int fd, std::string path, const ManifestFile& listed);
  absl::Status ReadBytes(uint64_t at, absl::Span<char> out);
  absl::Status PassTo(uint64_t at);

  const int fd_;
  const std::string path_;
  const uint64_t bytes_;
  const std::string hash_;
  std::atomic<uint64_t> bytes_read_ = 0;
  std::unique_ptr<Hasher> whole_;  // of the bytes before passed_
  uint64_t passed_ = 0;
};

}  // namespace trainyard
