// One file of a checkpoint under a handle that stays on it whatever becomes of its name. Where its reader vouches for
// the file, the hash of the whole is made of the bytes as they are read: what is read in order is read once, what was
// left out is read for the hash alone. Used by one thread at a time while it is vouched for, else by any.
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

// Of a file, in memory at once.
inline constexpr uint64_t kStretchBytes = 1 << 20;

class ShardFile {
 public:
  // Possible errors: those of opening it; DataLoss when it has another length than `listed`.
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(const std::string& folder, const ManifestFile& listed);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  const std::string& path() const { return path_; }
  // By all reads so far, also those for the hash.
  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

  // Possible errors: DataLoss, also where the disk says no: what cannot be read is as good as damaged.
  absl::Status Read(uint64_t at, absl::Span<char> out);

  void Vouch();
  bool vouched() const { return whole_ != nullptr; }
  // Possible errors: DataLoss when a byte is not what it was, also of one that nobody asked for.
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
