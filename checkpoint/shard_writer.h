// Writes one file of a checkpoint: tensors, or flat ranges of them, in the safetensors format, hashed while they are
// written and cut into pieces that can be read one at a time. Write-back is started during the writing and is never
// more than two ranges of `write_back_bytes` behind it, so that the final sync is short for a file of any length.
//
//   ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(folder, "shard-00003.safetensors", entries, file_system));
//   for (...) RETURN_IF_ERROR(shard->Append(bytes));     // for each entry, in their order
//   ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
//
// Not thread-safe. The file must not exist before; after an error the caller removes it.
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
#include "common/box.h"

namespace trainyard {

// The length of the longest piece. A reader verifies one piece at a time, and a report of damage names the piece.
inline constexpr uint64_t kPieceBytes = 64 << 20;

// The description of a tensor in a checkpoint. Its bytes are passed to Append later, so that not all tensors
// need to be in memory together.
struct TensorHeader {
  std::string name = {};
  std::string role = {};  // see ManifestTensor
  std::string dtype = {};
  std::vector<int64_t> shape = {};
};

// Elements [first, first + count), in row-major order, of a box of a tensor. In the file, a whole tensor has its own
// name and shape, and a whole box is called name[0:4,8:16]; a range has one dimension, and
// [first:first + count] after its name.
struct ShardEntry {
  TensorHeader tensor = {};
  Box box = {};  // without dimensions: the whole tensor
  uint64_t first = 0;
  uint64_t count = 0;
};

// The box of an entry, with its dimensions.
Box BoxOf(const ShardEntry& entry);

// "shard-00003.safetensors".
std::string ShardName(uint64_t rank);

// A parameter has its own name in a shard; optimizer state has "optimizer.<role>." before the name of its parameter.
std::string ShardTensorName(absl::string_view role, absl::string_view name);

// Returns the pieces into which an entry is cut, with their boundaries only: file, bytes and hash are not set. The
// boundaries depend on the arguments only, so that ranks cut the same range identically.
std::vector<ManifestPiece> CutIntoPieces(const ShardEntry& entry, uint64_t piece_bytes = kPieceBytes);

// Returns whether any value of a floating type is infinite or not a number. `bytes` holds whole values.
bool HasNonfinite(absl::string_view dtype, absl::string_view bytes);

struct WrittenShard {
  ManifestFile file = {};
  std::vector<ManifestTensor> tensors = {};  // one per entry, in their order, with the pieces in this file
  std::vector<std::string> nonfinite = {};   // as in a manifest
};

// The hashes of an entry's bytes, and whether a value is not finite.
struct EntryHashes {
  std::vector<std::string> pieces = {};  // the hash of each piece
  bool nonfinite = false;
};
// Hashes the pieces of an entry before it is written, so that Append only hashes the file as a whole.
EntryHashes HashEntry(const ShardEntry& entry, absl::string_view bytes, uint64_t piece_bytes = kPieceBytes);

struct ShardOptions {
  uint64_t piece_bytes = kPieceBytes;
  uint64_t write_back_bytes = 8 << 20;  // write-back is started for ranges of this length
  // Called before `bytes` bytes are written to the file. It may wait; an error ends the writing.
  std::function<absl::Status(uint64_t bytes)> before_write = nullptr;
};

class ShardWriter {
 public:
  // Entries of wide types should come first, so that each is aligned to the size of its elements. Fails with the errors
  // of the file, and with Internal for an unknown dtype or for elements that the tensor does not have.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(const std::string& folder, const std::string& name,
                                                             std::vector<ShardEntry> entries, FileSystem& file_system,
                                                             ShardOptions options = {});

  // Writes all bytes of the next entry. `hashes`, if not null, is the result of HashEntry for these bytes and the
  // same `piece_bytes`.
  // Fails with Internal if there is no next entry or `bytes` has another length, and with the errors of the file.
  absl::Status Append(absl::string_view bytes, const EntryHashes* hashes = nullptr);
  // Syncs the file. Fails with Internal if entries are missing, and with the errors of the file.
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
