// Memory that saves are copied into. It is allocated and touched before it is needed, and reused: either one private
// buffer, which ends with the process, or two alternating buffers in shared memory, of which the newest complete one
// outlives the process (checkpoint/snapshot.h). Also decides how much memory may be used.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/snapshot.h"

namespace trainyard {

// Memory for one copy. Held by shared pointers until the last thread that reads from it has finished.
class SaveBuffer {
 public:
  static absl::StatusOr<std::shared_ptr<SaveBuffer>> MakePrivate(uint64_t bytes);
  static absl::StatusOr<std::shared_ptr<SaveBuffer>> MakeShared(const std::string& path, uint64_t bytes);
  ~SaveBuffer();
  SaveBuffer(const SaveBuffer&) = delete;
  SaveBuffer& operator=(const SaveBuffer&) = delete;

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  SnapshotBuffer* snapshot() const { return snapshot_.get(); }  // null: private

 private:
  SaveBuffer(char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  char* const data_;
  const uint64_t bytes_;
  std::unique_ptr<SnapshotBuffer> snapshot_;
};

// Used only by the thread of the training loop.
class SaveMemory {
 public:
  // Allocates one private buffer, unless there is one that is large enough. Possible errors: ResourceExhausted.
  absl::Status ReservePrivate(uint64_t bytes);
  // Allocates two shared buffers in place of the present ones. After an error there are no buffers. Possible errors:
  // those of SnapshotBuffer::Make.
  absl::Status ReserveShared(const SnapshotPlace& place, uint64_t bytes);
  // Releases the buffers and removes their files. A copy that is being written stays in memory until it is written.
  void Drop();

  bool shared() const { return buffers_[1] != nullptr; }
  const SnapshotPlace& place() const { return place_; }
  uint64_t reserved_bytes() const;

  // Returns the buffer for the next copy, never `newest_whole` (the newest complete snapshot).
  // REQUIRES: a buffer is reserved.
  std::shared_ptr<SaveBuffer> Next(const SaveBuffer* newest_whole) const;

 private:
  SnapshotPlace place_;
  std::array<std::shared_ptr<SaveBuffer>, 2> buffers_;  // the second one is used only if they are shared
};

// Where saves may be copied to.
struct SaveMemoryPlan {
  bool shared = false;              // two copies fit into shared memory
  bool one_copy = false;            // one private copy fits into memory
  std::string why_not_shared = {};  // a phrase for a warning; empty if `shared`
};
struct SaveMemoryFacts {
  uint64_t bytes = 0;           // of one copy of this rank
  int local_ranks = 1;          // ranks on this host that need the same amount
  int64_t available_bytes = 0;  // memory available on this host; 0: not known
  int64_t folder_bytes = 0;     // free in the folder for snapshots; below 0: there is no folder
};
// Uses at most half of what is available. Pure.
SaveMemoryPlan PlanSaveMemory(const SaveMemoryFacts& facts);

// Free bytes of the file system that holds the folder; below 0: the folder does not exist, or is not writable.
int64_t FreeBytesOf(const std::string& folder);

}  // namespace trainyard
