// Makes the hosts that push output wait while too many lines wait for their reader. Thread-safe.
//
//   LogFlow flow([&] { return writer.waiting(); });
//   if (!flow.MayContinue(resume)) return;   // `resume` is called when the host may send more
//   flow.Continue();                         // the reader has taken lines, or has gone
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

class LogFlow {
 public:
  // The number of lines that may wait for a slow reader before the hosts that push them must wait.
  static constexpr size_t kLinesMax = 1'024;

  // `waiting` returns how many lines wait for the reader now: 0 after the end of its stream.
  explicit LogFlow(std::function<size_t()> waiting) : waiting_(std::move(waiting)) {}

  // Called when a host has added lines. Returns whether the host may send more at once. If not, `resume` is called
  // later, or already in this call.
  bool MayContinue(std::function<void()> resume) {
    if (waiting_() < kLinesMax) return true;
    {
      absl::MutexLock lock(&mu_);
      callbacks_.push_back(std::move(resume));
    }
    // The reader may have taken all lines, or have gone, before `resume` was added. Then nothing else would call it.
    Continue();
    return false;
  }

  // Lets the hosts continue if the reader has taken enough lines.
  void Continue() {
    if (waiting_() >= kLinesMax / 2) return;
    std::vector<std::function<void()>> callbacks;
    {
      absl::MutexLock lock(&mu_);
      callbacks.swap(callbacks_);
    }
    for (auto& resume : callbacks) resume();
  }

 private:
  const std::function<size_t()> waiting_;
  absl::Mutex mu_;
  std::vector<std::function<void()>> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
