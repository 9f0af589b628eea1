#include "common/malloc_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

namespace trainyard {

void LimitMallocMemory() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 4);
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
}

uint64_t AllocatedBytes() {
#ifdef __GLIBC__
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

uint64_t UnusedResidentBytes() {
#ifdef __GLIBC__
  uint64_t size = 0, resident = 0, shared = 0;  // in pages
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  const uint64_t private_bytes = (resident - std::min(shared, resident)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t used_bytes = AllocatedBytes();
  return private_bytes > used_bytes ? private_bytes - used_bytes : 0;
#else
  return 0;
#endif
}

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

bool TrimPolicy::ShouldTrim(uint64_t unused_bytes, uint64_t used_bytes) {
  left_bytes_ = std::min(left_bytes_, unused_bytes);
  return unused_bytes - left_bytes_ >= std::clamp(used_bytes / kGrowthDivisor, kMinGrowthBytes, kMaxGrowthBytes);
}

MemoryTrimmer::MemoryTrimmer(Effects effects) : effects_(std::move(effects)), thread_([this] { Run(); }) {}

MemoryTrimmer::~MemoryTrimmer() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void MemoryTrimmer::Run() {
  TrimPolicy policy;
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; };
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (changed_.AwaitFor(&mu_, effects_.interval, ended)) return;
    }
    if (!policy.ShouldTrim(effects_.unused_bytes(), effects_.used_bytes())) continue;
    effects_.trim();
    policy.Trimmed(effects_.unused_bytes());
  }
}

}  // namespace trainyard
