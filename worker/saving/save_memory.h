// Memory that saves are copied into, taken and touched before it is needed, kept and reused: one buffer that dies with
// the process, or two in shared memory, by turns, of which the newest whole one outlives it (checkpoint/snapshot.h).
// And how much of it there is to be had.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/snapshot.h"

namespace trainyard {

// Room for one copy. Kept by shared pointers until the last who writes from it is gone.
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

// The loop's, but for Sealed.
class SaveMemory {
 public:
  // One private buffer, unless there is room already. Possible errors: ResourceExhausted.
  absl::Status ReservePrivate(uint64_t bytes);
  // Two shared ones in place of what there is. Nothing stays of an attempt that fails. Possible errors: those of
  // SnapshotBuffer::Make.
  absl::Status ReserveShared(const SnapshotPlace& place, uint64_t bytes);
  // Gives back what there is, and removes its files. Copies that are being written stay until they are.
  void Drop();

  bool shared() const { return buffers_[1] != nullptr; }
  const SnapshotPlace& place() const { return place_; }
  uint64_t reserved_bytes() const;

  // Where the next copy goes: not where the newest whole snapshot lies. REQUIRES: there is room.
  std::shared_ptr<SaveBuffer> Next(const SaveBuffer* newest_whole) const;

 private:
  SnapshotPlace place_;
  std::array<std::shared_ptr<SaveBuffer>, 2> buffers_;  // the second one: only where they are shared
};

// What saves may be copied into.
struct SaveRoom {
  bool shared = false;
  bool one_copy = false;
  std::string why_not_shared = {};
};
struct SaveRoomFacts {
  uint64_t bytes = 0;           // of one copy of this rank
  int local_ranks = 1;          // that will ask for as much
  int64_t available_bytes = 0;  // memory to be had on this host; 0: not known
  int64_t folder_bytes = 0;     // free where snapshots lie
};
// Never more than half of what is to be had. Pure.
SaveRoom DecideSaveRoom(const SaveRoomFacts& facts);

// Free bytes of the file system that a folder is on; below 0: it is not there, or not ours to write.
int64_t FreeBytesOf(const std::string& folder);

}  // namespace trainyard
