// What a rank has copied for a save, in a file of shared memory: it outlives the trainer that made it, and proves
// itself. A rank has two such files and writes them by turns, so that whenever it is killed one is whole;
// docs/decisions/0006-saves.md tells who makes and who removes them.
//
//   header      a page: magic, version, state, job, generation, step, rank, world size, where the rest lies, and hashes
//   contents    ranges of tensors, each at a multiple of 64 bytes
//   index       a part (part.h), whose pieces lie in the contents; behind it what the saver added, as it gave it
//
// `state` says "being written" before the contents change and "whole" once all else is there. The header has its own
// hash and the index's, the index one for every piece. Numbers are in this machine's order: the file never leaves it.
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

// Whose snapshots, and where.
struct SnapshotPlace {
  std::string folder = {};  // empty: nowhere
  std::string job_id = {};
  uint64_t generation = 0;
  uint64_t rank = 0;
};
inline constexpr char kSnapshotBuffers[] = {'a', 'b'};
std::string SnapshotPath(const SnapshotPlace& place, char buffer);  // "<folder>/k3vq7a2p.g2.r0.a"

// The writer's side: one file, mapped. One thread at a time; who copies into contents() is the caller's concern.
class SnapshotBuffer {
 public:
  // A new file with room for so many bytes of contents, all taken now. Possible errors: ResourceExhausted: there is no
  // room; AlreadyExists; others of the system.
  static absl::StatusOr<std::unique_ptr<SnapshotBuffer>> Make(const std::string& path, uint64_t bytes);
  // The file stays.
  ~SnapshotBuffer();
  SnapshotBuffer(const SnapshotBuffer&) = delete;
  SnapshotBuffer& operator=(const SnapshotBuffer&) = delete;

  char* contents() const;
  uint64_t bytes() const { return bytes_; }

  // From here on it is not whole. Comes before any change of the contents.
  void Begin();
  // It is whole: `part` says what lies where, with the hashes of what is there now. Possible errors: ResourceExhausted
  // when there is no room for the index; it is not whole then.
  absl::Status Seal(absl::string_view job_id, const CheckpointPart& part, absl::string_view more);
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
  // Reads header and index. Possible errors: NotFound; Unavailable: it is not whole (being written, or left so);
  // DataLoss: a hash does not fit, or it is no snapshot; Unimplemented: of another version.
  static absl::StatusOr<std::unique_ptr<Snapshot>> Open(const std::string& path);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::string& path() const { return path_; }
  const std::string& job_id() const { return job_id_; }
  // Step, generation, world size, rank; each tensor's ranges. A piece's bytes count from the start of the contents,
  // which stand for the file it would have been written to; that has no hash of its own.
  const CheckpointPart& part() const { return part_; }
  // What the saver added.
  const std::string& more() const { return more_; }

  // Copies the bytes of one piece of part(), and verifies the copy: whoever writes the file meanwhile is found out.
  // REQUIRES: out.size() is the piece's length. Possible errors: DataLoss.
  absl::Status Read(const ManifestPiece& piece, absl::Span<char> out) const;
  // Every byte. Possible errors: DataLoss, naming the tensor.
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
  std::string more_;
};

// Paths of all snapshots of a job in `folder`, whole or not; of all generations and ranks.
std::vector<std::string> ListSnapshots(const std::string& folder, absl::string_view job_id);

// Removes all of a job in `folder` that are of generations below `generation`.
void RemoveOlderSnapshots(const std::string& folder, absl::string_view job_id, uint64_t generation);

}  // namespace trainyard
