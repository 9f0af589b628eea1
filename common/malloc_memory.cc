#include "common/malloc_memory.h"

#include <malloc.h>

#include <utility>

namespace trainyard {

void LimitMallocArenas() {
#ifdef M_ARENA_MAX
  constexpr int kArenas = 4;
  mallopt(M_ARENA_MAX, kArenas);
#endif
}

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

MemoryTrimmer::MemoryTrimmer(absl::Duration interval, std::function<void()> trim)
    : interval_(interval), trim_(std::move(trim)), thread_([this] { Run(); }) {}

MemoryTrimmer::~MemoryTrimmer() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void MemoryTrimmer::Run() {
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; };
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (changed_.AwaitFor(&mu_, interval_, ended)) return;
    }
    trim_();
  }
}

}  // namespace trainyard
