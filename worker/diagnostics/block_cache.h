// Caches the memory of freed tensors for new tensors of the same size: a training step requests the same sizes as the
// step before, so from the second or third step on it requests no memory from the system.
//
//   small blocks          left to malloc, which caches them itself
//   kMinBytes or more     a whole number of pages; a freed block serves the next request for the same number of pages
//
// Bounded: a new block is allocated only while the total stays within kMaxGrowth times the peak of memory in use, plus
// kSlack. If idle blocks of other sizes would push the total beyond this limit, the blocks that have been idle longest
// are returned to the system first. So an evaluation, or loading other shapes, costs a few steps of warm-up, but memory
// never grows without bound.
//
// Thread-safe; a request costs a lock and a look-up. Never destroyed, because tensors with static lifetime are freed
// after everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

class BlockCache {
 public:
  static constexpr size_t kMinBytes = size_t{64} << 10;
  static constexpr double kMaxGrowth = 1.25;
  static constexpr int64_t kSlack = int64_t{16} << 20;

  struct System {  // any thread may call these functions
    void* (*allocate)(size_t bytes);
    void (*free)(void* block);
    size_t (*size_of)(const void* block);  // usable size, which exceeds the requested one by less than a page
    void (*idle)(int64_t delta);           // receives the change of the idle bytes
  };
  struct Counts {
    int64_t allocated = 0;  // blocks of kMinBytes or more that were requested from the system
    int64_t freed = 0;      // returned to the system
    int64_t idle_bytes = 0;
    int64_t in_use_bytes = 0;
  };

  explicit BlockCache(const System& system) : system_(system) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Returns at least `bytes` with unspecified content. If memory is exhausted, does the same as System::allocate.
  void* Allocate(size_t bytes);
  // `block` must have come from Allocate, or be null.
  void Free(void* block);
  // Returns all idle blocks to the system.
  void Clear();

  Counts counts() const;

 private:
  struct Idle {
    void* block = nullptr;
    uint64_t idle_since = 0;  // value of clock_
  };
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountIdle(int64_t delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const System system_;
  mutable absl::Mutex mu_;
  std::map<size_t, std::vector<Idle>> idle_ ABSL_GUARDED_BY(mu_);  // by size; the longest idle first
  uint64_t clock_ ABSL_GUARDED_BY(mu_) = 0;                        // counts the blocks that became idle
  int64_t peak_in_use_ ABSL_GUARDED_BY(mu_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
