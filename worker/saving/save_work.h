// One save of a rank on its way, step by step; save_thread.cc says which thread does what when.
//
//   PlanCopies        which bytes go where; from here on the task's ranges lie where their copies will be
//   CopyChunk         of each, by whoever is free
//   SealSnapshot      once all are copied: hashes, and the snapshot is whole
//   WriteSave         the rank's files and its part
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
    std::string* hash;
  };
  std::vector<Chunk> chunks;
  std::vector<ManifestTensor> witnessed;
  std::atomic<size_t> next_chunk = 0;

  // Under the thread's mutex.
  size_t chunks_done = 0;
  bool cancelled = false, hurries = false;
  bool torn = false;  // a chunk was left out
  bool copied = false;
  absl::Time began;
  std::optional<SaveEnd> end;

  // The writer's. By file and range; empty: not known yet.
  std::vector<std::vector<EntryProof>> proofs;
  std::string beyond_range;
};

// Room that copies of all that does not stay take.
uint64_t BytesToCopy(const SaveTask& task);

void PlanCopies(SaveWork& work);
void CopyChunk(const SaveWork::Chunk& chunk);

// REQUIRES: all is copied, into shared memory. Possible errors: those of SnapshotBuffer::Seal.
absl::Status SealSnapshot(absl::string_view job_id, SaveWork& work);

// `before_write` is asked before so many bytes go to the file system. `bytes`: how many were written. What is left of a
// save that fails is removed. Possible errors: those of the file system, of `before_write` and of the task's may_write.
absl::Status WriteSave(FileSystem& file_system, SaveWork& work,
                       const std::function<absl::Status(uint64_t)>& before_write, uint64_t& bytes);

}  // namespace trainyard
