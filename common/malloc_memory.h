// Limits the memory that glibc's allocator keeps for a daemon that runs for weeks. Without this, a daemon stays as
// large as it was at its busiest moment. With another allocator, nothing here has an effect.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"

namespace trainyard {

// Call it before the first thread starts.
// - glibc gives threads up to 8 arenas per core, and each keeps what is freed in it. A daemon with many short-lived
//   threads would grow until all of them are full, so there are at most 4.
// - Blocks of 128 KiB or more are returned when they are freed. By default, glibc raises this limit when it frees such
//   a block. A later block of that size (the copy of a history that a client reads) then enlarges an arena for ever.
void LimitMallocMemory();

// Returns the bytes of the blocks that the program has allocated and not freed. A leak increases this number, while the
// resident memory also depends on where the blocks are. Each thread keeps a few freed blocks, which count as allocated.
uint64_t AllocatedBytes();

// Returns the bytes of memory that are resident but not used by the program: what the allocator keeps, and parts of
// pages between used blocks.
uint64_t UnusedResidentBytes();

// Returns the freed pages of all arenas to the system. Threads that use an arena wait while its pages are returned.
void ReturnFreedMemory();

// Decides when to return freed memory: when the unused memory has grown enough since the last time. Enough is 1/256 of
// the used memory, but not less than 256 KiB or more than 16 MiB. Unused memory that remains after it was returned
// consists of parts of pages, which cannot be returned, so only the growth counts. With a larger limit, the resident
// memory would grow for hours, up to the highest use since the start.
class TrimPolicy {
 public:
  static constexpr uint64_t kGrowthDivisor = 256, kMinGrowthBytes = 256 << 10, kMaxGrowthBytes = 16 << 20;

  bool ShouldTrim(uint64_t unused_bytes, uint64_t used_bytes);
  // Call it after freed memory was returned, with the unused memory that remains.
  void Trimmed(uint64_t unused_bytes) { left_bytes_ = unused_bytes; }

 private:
  uint64_t left_bytes_ = 0;
};

// Returns freed memory to the system as TrimPolicy decides, once per interval, on its own thread.
class MemoryTrimmer {
 public:
  struct Effects {
    absl::Duration interval = absl::Minutes(1);
    std::function<uint64_t()> unused_bytes = UnusedResidentBytes;
    std::function<uint64_t()> used_bytes = AllocatedBytes;
    std::function<void()> trim = ReturnFreedMemory;
  };

  MemoryTrimmer() : MemoryTrimmer(Effects()) {}
  explicit MemoryTrimmer(Effects effects);
  ~MemoryTrimmer();
  MemoryTrimmer(const MemoryTrimmer&) = delete;
  MemoryTrimmer& operator=(const MemoryTrimmer&) = delete;

 private:
  void Run();

  const Effects effects_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the other fields
};

}  // namespace trainyard
