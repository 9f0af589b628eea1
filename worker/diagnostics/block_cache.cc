#include "worker/diagnostics/block_cache.h"

#include <algorithm>

namespace trainyard {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

void* BlockCache::Allocate(size_t bytes) {
  // Free recognises cached blocks by their size, which the system may round up by less than a page. So a request goes
  // to the system directly only if it is smaller than kMinBytes by more than a page.
  if (bytes + kPage < kMinBytes) return system_.allocate(bytes);
  const size_t size = std::max(kMinBytes, (bytes + kPage - 1) / kPage * kPage);
  {
    absl::MutexLock lock(&mu_);
    counts_.in_use_bytes += static_cast<int64_t>(size);
    peak_in_use_ = std::max(peak_in_use_, counts_.in_use_bytes);
    if (auto at = idle_.find(size); at != idle_.end() && !at->second.empty()) {
      void* block = at->second.back().block;  // used last, so most likely still in the CPU's caches
      at->second.pop_back();
      CountIdle(-static_cast<int64_t>(size));
      return block;
    }
    const auto limit = static_cast<int64_t>(kMaxGrowth * static_cast<double>(peak_in_use_)) + kSlack;
    while (counts_.idle_bytes > 0 && counts_.idle_bytes + counts_.in_use_bytes > limit) DropOldest();
    ++counts_.allocated;
  }
  try {
    return system_.allocate(size);
  } catch (...) {
    absl::MutexLock lock(&mu_);
    counts_.in_use_bytes -= static_cast<int64_t>(size);
    --counts_.allocated;
    throw;
  }
}

void BlockCache::Free(void* block) {
  if (block == nullptr) return;
  const size_t size = system_.size_of(block) / kPage * kPage;
  if (size < kMinBytes) return system_.free(block);
  absl::MutexLock lock(&mu_);
  counts_.in_use_bytes -= static_cast<int64_t>(size);
  CountIdle(static_cast<int64_t>(size));
  idle_[size].push_back({block, ++clock_});
}

void BlockCache::Clear() {
  absl::MutexLock lock(&mu_);
  while (counts_.idle_bytes > 0) DropOldest();
}

void BlockCache::DropOldest() {
  auto oldest = idle_.end();
  for (auto at = idle_.begin(); at != idle_.end();) {
    if (at->second.empty()) {
      at = idle_.erase(at);
      continue;
    }
    if (oldest == idle_.end() || at->second.front().idle_since < oldest->second.front().idle_since) oldest = at;
    ++at;
  }
  system_.free(oldest->second.front().block);
  oldest->second.erase(oldest->second.begin());
  CountIdle(-static_cast<int64_t>(oldest->first));
  ++counts_.freed;
}

void BlockCache::CountIdle(int64_t delta) {
  counts_.idle_bytes += delta;
  system_.idle(delta);
}

BlockCache::Counts BlockCache::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

}  // namespace trainyard
