// Reads a verified checkpoint. Open verifies everything (verify.h): the manifest's own hash, that its content does not
// contradict itself, that the folder holds exactly the listed files, their lengths, and the hash of every byte. A read
// returns any box of a tensor, independent of the pieces in which it was saved, so that a job can load what a job of
// another layout wrote. Only the pieces that overlap the box are read, a MiB at a time, and hashed again. An open
// checkpoint is not removed (lease.h). Immutable once opened, and thread-safe.
//
//   ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path));
//   RETURN_IF_ERROR(checkpoint->ReadTensor("parameter", "wte.weight", "F32", {256, 128}, {data, bytes}));
//
// Ranks that load together verify while they read, so that each file is read in full by one rank only:
//
//   ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::OpenUnverified(path));
//   checkpoint->BeginVerifying(rank, world_size);
//   ... reads by one thread ...
//   RETURN_IF_ERROR(checkpoint->FinishVerifying());
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
#include "common/box.h"

namespace trainyard {

class Checkpoint {
 public:
  // Fails with NotFound if there is no checkpoint at `path`, with DataLoss that names file and tensor if it is damaged,
  // with Unavailable if it is being removed, and with a failed read (read_error.h) if it cannot be read. The other
  // functions that read can fail with a failed read, too.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);
  // The same, but checks only manifest, names and lengths. Bytes that are read later are always hashed.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenUnverified(const std::string& path);
  ~Checkpoint();

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& manifest_hash() const { return manifest_hash_; }

  // From now on also hashes whole files while they are read: those that are assigned to `share` of `shares`. Each file
  // is assigned to one share, the shard of rank N to share N modulo `shares`. All reads must then come from one thread.
  // Files that contain only copies of the weights (checkpoint.weights_copy) are left out.
  void BeginVerifying(int share, int shares);
  // Reads the rest of the files of this share and compares the hashes. Fails with DataLoss that names the file, and the
  // tensor if the damage is in one.
  absl::Status FinishVerifying();
  // The number of bytes of all files that were read since they were opened.
  uint64_t bytes_read() const;

  // Copies a whole tensor, row-major, into `out`. Fails with NotFound if there is no such tensor, with
  // FailedPrecondition if its dtype or shape differs from the arguments.
  absl::Status ReadTensor(absl::string_view role, absl::string_view name, absl::string_view dtype,
                          const std::vector<int64_t>& shape, absl::Span<char> out) const;

  // Copies elements [first, first + count) of a tensor, in row-major order, into `out`. `dtype` and `shape` are those
  // of the whole tensor. Fails with the errors of ReadTensor and ReadBox.
  absl::Status ReadRange(absl::string_view role, absl::string_view name, absl::string_view dtype,
                         const std::vector<int64_t>& shape, int64_t first, int64_t count, absl::Span<char> out) const;

  // Copies elements [first, first + count), in row-major order, of a box of a tensor into `out`. `dtype` and `shape`
  // are those of the whole tensor. Fails with the errors of ReadTensor and ReadBox.
  absl::Status ReadBoxRange(absl::string_view role, absl::string_view name, absl::string_view dtype,
                            const std::vector<int64_t>& shape, const Box& box, int64_t first, int64_t count,
                            absl::Span<char> out) const;

  // Copies a box of a tensor, row-major, into `out`, whose size is that of the box. Fails with NotFound, with
  // InvalidArgument if the box is not within the tensor or `out` has another size, with DataLoss if a piece does not
  // match its hash.
  absl::Status ReadBox(absl::string_view role, absl::string_view name, const Box& box, absl::Span<char> out) const;

 private:
  Checkpoint();
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenManifest(const std::string& path);
  absl::Status OpenFiles(const std::vector<CheckpointProblem>& problems);
  absl::StatusOr<const ManifestTensor*> Find(absl::string_view role, absl::string_view name) const;
  absl::StatusOr<const ManifestTensor*> FindMatching(absl::string_view role, absl::string_view name,
                                                     absl::string_view dtype, const std::vector<int64_t>& shape) const;
  absl::Status ReadRangeOf(const ManifestTensor& tensor, const Box& box, int64_t first, int64_t count,
                           absl::Span<char> out) const;
  // Reads the piece and calls `visit` for one range of it after another, each described as a piece of its own.
  absl::Status ReadPiece(const ManifestTensor& tensor, const ManifestPiece& piece,
                         absl::FunctionRef<void(const ManifestPiece& range, const char* bytes)> visit) const;

  std::string path_;
  std::unique_ptr<CheckpointLease> lease_;
  std::string manifest_hash_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<ShardFile>> files_;
};

}  // namespace trainyard
