// Reads a checkpoint that has proved itself. Opening verifies everything, in parallel over the files (verify.h): the
// manifest's own hash, that its content does not contradict itself, that the folder holds exactly the files it lists,
// their lengths, and the hash of every byte. Reading gives any box of a tensor from whatever pieces it was saved in, so
// that a layout may load what another wrote; only pieces that it overlaps are read, a MiB at a time, and hashed once
// more. While it is open nobody removes it (lease.h). Immutable once opened; may be read from any thread.
//
//   ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path));
//   RETURN_IF_ERROR(checkpoint->ReadTensor("parameter", "wte.weight", "F32", {256, 128}, {data, bytes}));
//
// Ranks that load together verify as they read, each file once among them all:
//
//   ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::OpenUnread(path));
//   checkpoint->Vouch(rank, world_size);
//   ... reads of one thread ...
//   RETURN_IF_ERROR(checkpoint->FinishVouching());
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/lease.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/verify.h"

namespace trainyard {

// A part of a global tensor: where it begins and its size, per dimension.
struct Box {
  std::vector<int64_t> start;
  std::vector<int64_t> size;
};

class Checkpoint {
 public:
  // Possible errors: NotFound when `path` is no checkpoint; DataLoss, naming file and tensor, when it is damaged;
  // Unavailable when it is being removed.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);
  // The same without reading the files: manifest, names and lengths. What is read of it is hashed in any case.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenUnread(const std::string& path);
  ~Checkpoint();

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& manifest_hash() const { return manifest_hash_; }

  // Of the files dealt to `share` of `shares`, the hash of the whole is made too, as they are read from now on, by one
  // thread. Each file is dealt to one share, a rank's shard to that rank if there is one.
  void Vouch(int share, int shares);
  // Reads what was not read of those, and compares. Possible errors: DataLoss, naming file and, where it lies in one,
  // tensor.
  absl::Status FinishVouching();
  // Of all files, so far, since they were opened to be read.
  uint64_t bytes_read() const;

  // Copies a whole tensor, row-major, into `out`. Possible errors: NotFound when there is no such tensor;
  // FailedPrecondition when dtype or shape differ from those asked for.
  absl::Status ReadTensor(absl::string_view role, absl::string_view name, absl::string_view dtype,
                          const std::vector<int64_t>& shape, absl::Span<char> out) const;

  // Copies elements [first, first + count) of a tensor, in row-major order, into `out`. `dtype` and `shape` are those
  // of the whole tensor. Possible errors: those of ReadTensor and ReadBox.
  absl::Status ReadRange(absl::string_view role, absl::string_view name, absl::string_view dtype,
                         const std::vector<int64_t>& shape, int64_t first, int64_t count, absl::Span<char> out) const;

  // Copies a box of a tensor, row-major, into `out`, whose size is that of the box. Possible errors: NotFound;
  // InvalidArgument when the box is not within the tensor or `out` has another size; DataLoss when a piece's hash
  // differs.
  absl::Status ReadBox(absl::string_view role, absl::string_view name, const Box& box, absl::Span<char> out) const;

 private:
  Checkpoint();
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenManifest(const std::string& path);
  absl::Status OpenFiles(const std::vector<CheckpointProblem>& problems);
  absl::StatusOr<const ManifestTensor*> Find(absl::string_view role, absl::string_view name) const;
  absl::StatusOr<const ManifestTensor*> FindLike(absl::string_view role, absl::string_view name,
                                                 absl::string_view dtype, const std::vector<int64_t>& shape) const;
  // Calls `take(piece, bytes)` for one stretch after another of what is in the file, each as a piece of its own.
  absl::Status ReadPiece(const ManifestTensor& tensor, const ManifestPiece& piece,
                         absl::FunctionRef<void(const ManifestPiece& stretch, const char* bytes)> take) const;

  std::string path_;
  std::unique_ptr<CheckpointLease> lease_;
  std::string manifest_hash_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<ShardFile>> files_;
};

}  // namespace trainyard
