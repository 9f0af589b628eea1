// The open streams by id, in which the loop's thread finds the target of an effect. The registry's shared_ptr keeps a
// stream until gRPC is done with it, and Find returns another shared_ptr, so an effect never uses a deleted stream.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

template <typename Id, typename T>
class Registry {
 public:
  Id NewId() { return Id(next_.fetch_add(1, std::memory_order_relaxed)); }

  void Add(Id id, std::shared_ptr<T> entry) {
    absl::MutexLock lock(&mu_);
    entries_[id] = std::move(entry);
  }
  std::shared_ptr<T> Find(Id id) const {
    absl::MutexLock lock(&mu_);
    auto it = entries_.find(id);
    return it == entries_.end() ? nullptr : it->second;
  }
  // Returns the removed entry, if there was one; the caller destroys it outside the lock.
  std::shared_ptr<T> Remove(Id id) {
    absl::MutexLock lock(&mu_);
    auto it = entries_.find(id);
    if (it == entries_.end()) return nullptr;
    std::shared_ptr<T> entry = std::move(it->second);
    entries_.erase(it);
    return entry;
  }
  std::vector<std::pair<Id, std::shared_ptr<T>>> All() const {
    absl::MutexLock lock(&mu_);
    return {entries_.begin(), entries_.end()};
  }
  size_t size() const {
    absl::MutexLock lock(&mu_);
    return entries_.size();
  }

 private:
  std::atomic<uint64_t> next_{1};
  mutable absl::Mutex mu_;
  absl::flat_hash_map<Id, std::shared_ptr<T>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
