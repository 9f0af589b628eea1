// The copy that a rank has made for a save, in a file in shared memory. The file outlives the trainer, and its hashes
// detect damage. A rank writes two such files alternately, so that after the first copy a complete one exists
// whenever the trainer is killed; docs/decisions/0006-saves.md describes which process creates and which removes them.
//
//   header      a page: magic, version, state, job, generation, step, rank, world size, offsets and lengths, and hashes
//   contents    ranges of tensors, each at a multiple of 64 bytes
//   index       a part (part.h), whose pieces are in the contents, followed by extra bytes of the saver
//
// `state` is "writing" before the contents change, and "complete" after everything else has been written. The header
// has its own hash and the hash of the index; the index has a hash of every piece. Numbers have the byte order of this
// machine, which the file never leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/part.h"

namespace trainyard {

inline constexpr uint64_t kSnapshotAlignment = 64;
inline uint64_t AlignedInSnapshot(uint64_t bytes) {
  return (bytes + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
}

// The folder and the rank that snapshots belong to.
struct SnapshotPlace {
  std::string folder = {};  // empty: no snapshots are made
  std::string job_id = {};
  uint64_t generation = 0;
  uint64_t rank = 0;
};
inline constexpr char kSnapshotBuffers[] = {'a', 'b'};
std::string SnapshotPath(const SnapshotPlace& place, char buffer);  // "<folder>/k3vq7a2p.g2.r0.a"

// The writer's side: one mapped file. Not thread-safe; the caller synchronizes the writes to contents().
class SnapshotBuffer {
 public:
  // Creates a file and allocates `bytes` bytes for the contents. Fails with ResourceExhausted if there is not enough
  // memory, with AlreadyExists, and with other errors of the system.
  static absl::StatusOr<std::unique_ptr<SnapshotBuffer>> Make(const std::string& path, uint64_t bytes);
  // Does not remove the file.
  ~SnapshotBuffer();
  SnapshotBuffer(const SnapshotBuffer&) = delete;
  SnapshotBuffer& operator=(const SnapshotBuffer&) = delete;

  char* contents() const;
  uint64_t bytes() const { return bytes_; }

  // Marks the snapshot as incomplete. Must be called before the contents change.
  void Begin();
  // Marks the snapshot as complete, with the bytes `extra` after its index. `part` describes the contents, with hashes
  // of their current bytes. If it fails, the snapshot remains incomplete. Possible errors: ResourceExhausted if there
  // is no space for the index; InvalidArgument if `job_id` is too long.
  absl::Status Seal(absl::string_view job_id, const CheckpointPart& part, absl::string_view extra);
  void Remove();

 private:
  SnapshotBuffer(std::string path, int fd, char* data, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), data_(data), bytes_(bytes) {}

  const std::string path_;
  const int fd_;
  char* const data_;
  const uint64_t bytes_;  // of contents
};

// The reader's side. Thread-safe.
class Snapshot {
 public:
  // Reads header and index. Fails with NotFound, with Unavailable if the snapshot is not complete, with DataLoss if a
  // hash does not match or the file is not a snapshot, with Unimplemented for another version.
  static absl::StatusOr<std::unique_ptr<Snapshot>> Open(const std::string& path);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::string& path() const { return path_; }
  const std::string& job_id() const { return job_id_; }
  // Step, generation, world size, rank and the ranges of each tensor. The bytes of a piece are counted from the start
  // of the contents, which take the place of a shard file and have no hash as a whole.
  const CheckpointPart& part() const { return part_; }
  // The bytes that the writer passed to Seal.
  const std::string& extra() const { return extra_; }

  // Copies the bytes of one piece of part(), and verifies the copy, which detects a concurrent write. Fails with
  // DataLoss. REQUIRES: out.size() is the piece's length.
  absl::Status Read(const ManifestPiece& piece, absl::Span<char> out) const;
  // Verifies every byte. Fails with DataLoss that names the tensor.
  absl::Status Verify() const;

 private:
  Snapshot(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status ReadIndex();
  absl::Status CheckPieces(uint64_t contents_bytes) const;
  absl::Status ReadAt(uint64_t at, absl::Span<char> out) const;

  const std::string path_;
  const int fd_;
  std::string job_id_;
  CheckpointPart part_;
  std::string extra_;
};

// Returns the paths of all snapshots of a job in `folder`, complete or not, of all generations and ranks.
std::vector<std::string> ListSnapshots(const std::string& folder, absl::string_view job_id);

// Removes the snapshots of a job in `folder` whose generation is below `generation`.
void RemoveOlderSnapshots(const std::string& folder, absl::string_view job_id, uint64_t generation);

}  // namespace trainyard
