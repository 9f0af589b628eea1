// Writes one file of a checkpoint: tensors, or flat ranges of them, as safetensors, hashed on the way and cut into
// pieces that a reader can take one at a time. Write-back is started as it goes, and never further behind than two
// stretches, so that what the end has to sync is little, however long the file.
//
//   ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(folder, "shard-00003.safetensors", entries, file_system));
//   for (...) RETURN_IF_ERROR(shard->Append(bytes));     // of each entry, in their order
//   ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
//
// One thread. A file that is there already is an error; what was begun is the caller's to remove.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace trainyard {

// Longest piece: what a reader verifies at once, and what damage is narrowed down to.
inline constexpr uint64_t kPieceBytes = 64 << 20;

// What a tensor of a checkpoint is. Its bytes come later, so that not all of them need be in memory at once.
struct TensorHeader {
  std::string name = {};
  std::string role = {};  // see ManifestTensor
  std::string dtype = {};
  std::vector<int64_t> shape = {};
};

// Elements [first, first + count) of a tensor, in row-major order; the whole of it lies in the file under its own name
// and shape, a part under name[first:last], flat.
struct ShardEntry {
  TensorHeader tensor = {};
  uint64_t first = 0;
  uint64_t count = 0;
};

// "shard-00003.safetensors".
std::string ShardName(uint64_t rank);

// A parameter has its own name in a shard; optimizer state has "optimizer.<role>." before it.
std::string ShardTensorName(absl::string_view role, absl::string_view name);

// The pieces into which `count` elements from `first` on are cut, at the same places whoever cuts them; without file,
// bytes and hash.
std::vector<ManifestPiece> CutIntoPieces(const TensorHeader& tensor, uint64_t first, uint64_t count,
                                         uint64_t piece_bytes = kPieceBytes);

// Whether any value of a floating type is infinite or not a number. `bytes` is of whole values.
bool HasNonfinite(absl::string_view dtype, absl::string_view bytes);

struct WrittenShard {
  ManifestFile file = {};
  std::vector<ManifestTensor> tensors = {};  // with the pieces in this file alone; one an entry, in their order
  std::vector<std::string> nonfinite = {};   // as in a manifest
};

// What is found out about an entry's bytes.
struct EntryProof {
  std::vector<std::string> hashes = {};  // of its pieces
  bool nonfinite = false;
};
EntryProof ProveEntry(const ShardEntry& entry, absl::string_view bytes, uint64_t piece_bytes = kPieceBytes);

struct ShardOptions {
  uint64_t piece_bytes = kPieceBytes;
  uint64_t write_back_bytes = 8 << 20;  // of a stretch
  // Asked before so many bytes are handed to the file; it may wait, and an error ends the writing.
  std::function<absl::Status(uint64_t bytes)> before_write = nullptr;
};

class ShardWriter {
 public:
  // Entries of wide types should come first: each lies at a multiple of its element's size then. Possible errors: those
  // of FileSystem::Create; Internal for a dtype that is not known.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(const std::string& folder, const std::string& name,
                                                             std::vector<ShardEntry> entries, FileSystem& file_system,
                                                             ShardOptions options = {});

  // All bytes of the next entry; `proof`, if there is one, is of these bytes and pieces of this size. Possible errors:
  // Internal when there is none, or it has another length; those of the file.
  absl::Status Append(absl::string_view bytes, const EntryProof* proof = nullptr);
  // Syncs. Possible errors: Internal when entries are missing; those of the file.
  absl::StatusOr<WrittenShard> Finish();

 private:
  class HashedFile;
  ShardWriter(std::vector<ShardEntry> entries, ShardOptions options);

  const std::vector<ShardEntry> entries_;
  const ShardOptions options_;
  std::vector<TensorInfo> infos_;
  uint64_t data_begins_ = 0;
  std::shared_ptr<HashedFile> file_;
  WrittenShard written_;
};

}  // namespace trainyard
