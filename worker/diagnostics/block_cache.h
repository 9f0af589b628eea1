// Memory of tensors that are gone, kept for the next ones of their size: a training step asks for the same sizes as the
// step before, so from the second or third on it asks the system for none.
//
//   small blocks     malloc's, which keeps them itself
//   kMinBytes or more   a whole number of pages; one that was given back serves the next request of as many pages
//
// Bounded: a block is made only within kRoom times the most that was out at once (and kSlack more); where idle ones of
// other sizes are in the way, those that have been idle for longest go back to the system first. So an evaluation or a
// load of other shapes costs a few steps of warming up, never memory without end.
//
// Thread-safe; costs a lock and a look-up a block. Never destroyed: tensors of static life are freed after everything.
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
  static constexpr double kRoom = 1.25;
  static constexpr int64_t kSlack = int64_t{16} << 20;

  struct System {  // functions that any thread may call
    void* (*make)(size_t bytes);
    void (*free)(void* block);
    size_t (*size_of)(const void* block);  // that may be used; less than a page more than it was made with
    void (*idle)(int64_t delta);           // is told how many bytes more, or fewer, are idle
  };
  struct Counts {
    int64_t made = 0;   // blocks of kMinBytes or more that were asked of the system
    int64_t freed = 0;  // given back to it
    int64_t idle_bytes = 0;
    int64_t out_bytes = 0;
  };

  explicit BlockCache(const System& system) : system_(system) {}
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Of `bytes` or more, with anything in it. What the system's `make` answers or throws where it has none.
  void* Take(size_t bytes);
  // `block` must have come from Take, or be null.
  void Give(void* block);
  // Gives all that is idle back to the system.
  void Clear();

  Counts counts() const;

 private:
  struct Idle {
    void* block = nullptr;
    uint64_t since = 0;
  };
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountIdle(int64_t delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const System system_;
  mutable absl::Mutex mu_;
  std::map<size_t, std::vector<Idle>> idle_ ABSL_GUARDED_BY(mu_);  // by size; the longest idle first
  uint64_t clock_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t peak_out_ ABSL_GUARDED_BY(mu_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
