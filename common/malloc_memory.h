// Limits the memory that glibc's allocator keeps for a daemon that runs for weeks. Without this, a daemon stays as
// large as it was at its busiest moment. With another allocator, nothing here has an effect.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"

namespace trainyard {

// glibc gives threads up to 8 arenas per core, and each keeps what is freed in it. A daemon with many short-lived
// threads would grow until all of them are full. Call it before the first thread starts.
void LimitMallocArenas();

// Returns the freed pages of all arenas to the system. Threads that use an arena wait while its pages are returned.
void ReturnFreedMemory();

// Calls ReturnFreedMemory once per interval, on its own thread, from its construction to its destruction.
class MemoryTrimmer {
 public:
  explicit MemoryTrimmer(absl::Duration interval = absl::Minutes(1), std::function<void()> trim = ReturnFreedMemory);
  ~MemoryTrimmer();
  MemoryTrimmer(const MemoryTrimmer&) = delete;
  MemoryTrimmer& operator=(const MemoryTrimmer&) = delete;

 private:
  void Run();

  const absl::Duration interval_;
  const std::function<void()> trim_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the other fields
};

}  // namespace trainyard
