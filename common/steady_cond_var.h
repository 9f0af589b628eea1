// A condition variable for absl::Mutex whose timed waits run by the steady clock. Those of absl::Mutex and
// absl::CondVar run by the wall clock in this Abseil: when that is set back, a wait lasts as much longer.
//
//   absl::MutexLock lock(&mu_);
//   if (changed_.AwaitFor(&mu_, absl::Seconds(2), [this] { return done_; })) ...
//
// Whoever changes what a condition looks at calls SignalAll, with or without the mutex. Thread-safe.
#pragma once

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace trainyard {

class SteadyCondVar {
 public:
  void SignalAll() { changed_.notify_all(); }

  // Waits until `condition`, which is called with the mutex held, is true, for `limit` at most. Returns whether it is.
  bool AwaitFor(absl::Mutex* mu, absl::Duration limit, absl::FunctionRef<bool()> condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held{mu};
    if (limit < absl::InfiniteDuration()) return changed_.wait_for(held, absl::ToChronoNanoseconds(limit), condition);
    changed_.wait(held, condition);
    return true;
  }
  // Waits for one SignalAll, for `limit` at most; it may return earlier.
  void WaitFor(absl::Mutex* mu, absl::Duration limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held{mu};
    if (limit < absl::InfiniteDuration()) {
      changed_.wait_for(held, absl::ToChronoNanoseconds(limit));
    } else {
      changed_.wait(held);
    }
  }

 private:
  // absl::Mutex as the standard library calls a lock; held around the wait.
  struct Held {
    absl::Mutex* mu;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace trainyard
