// One save of one rank, step by step; save_thread.cc defines which thread does what and when.
//
//   PlanChunks        divides the copies and hashes into chunks; from here on the task's ranges point to the copies
//   ProcessChunk      copies one chunk, or hashes it if this rank is its witness; called by any thread that is free
//   SealSnapshot      when all chunks are copied: hashes the copied ranges and marks the snapshot as complete
//   WriteSave         writes the rank's files and its part
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/file_system.h"
#include "worker/saving/save_memory.h"
#include "worker/saving/save_task.h"

namespace trainyard {

struct SaveWork {
  SaveTask task;
  std::shared_ptr<SaveBuffer> buffer;  // null: nothing is copied

  struct Chunk {
    const char* from;
    char* to;  // null: `from` is hashed into `hash`
    uint64_t bytes;
    std::string* hash;  // null if `to` is set
  };
  std::vector<Chunk> chunks;
  std::vector<ManifestTensor> witnessed;
  std::atomic<size_t> next_chunk = 0;

  // Guarded by the save thread's mutex.
  size_t chunks_done = 0;
  bool cancelled = false;
  bool unlimited = false;   // ignores the limit of bytes per second
  bool incomplete = false;  // a chunk was not copied
  bool copied = false;
  absl::Time began;
  std::optional<SaveEnd> end;

  // Used by the writer only.
  std::vector<std::vector<EntryHashes>> entry_hashes;  // by file and range; empty: not known yet
  std::string beyond_range;                            // as in SaveEnd
};

// Bytes of all ranges that need a copy.
uint64_t BytesToCopy(const SaveTask& task);

void PlanChunks(SaveWork& work);
void ProcessChunk(const SaveWork::Chunk& chunk);

// REQUIRES: everything is copied, into shared memory. Possible errors: those of SnapshotBuffer::Seal.
absl::Status SealSnapshot(absl::string_view job_id, SaveWork& work);

// `before_write` is called with a number of bytes before these are written. Adds the sizes of the written files,
// without the part, to `bytes`. Removes the files of a save that fails. Possible errors: those of the file system, of
// `before_write` and of the task's may_write.
absl::Status WriteSave(FileSystem& file_system, SaveWork& work,
                       const std::function<absl::Status(uint64_t)>& before_write, uint64_t& bytes);

}  // namespace trainyard
