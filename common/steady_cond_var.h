// A condition variable for absl::Mutex. Its timed waits use the steady clock. Those of absl::Mutex and absl::CondVar in
// Debian's Abseil use the wall clock: when that clock is set back, they wait longer by the same amount.
//
//   absl::MutexLock lock(&mu_);
//   if (changed_.AwaitFor(&mu_, absl::Seconds(2), [this] { return done_; })) ...
//
// Code that changes the state that a condition reads holds the mutex for the change and then calls SignalAll, before or
// after it releases the mutex. Thread-safe.
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

  // Waits until `condition` is true, at most for `limit`, and returns whether it is. `condition` is called with the
  // mutex held.
  bool AwaitFor(absl::Mutex* mu, absl::Duration limit, absl::FunctionRef<bool()> condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held{mu};
    if (limit < absl::InfiniteDuration()) return changed_.wait_for(held, absl::ToChronoNanoseconds(limit), condition);
    changed_.wait(held, condition);
    return true;
  }
  // Waits for a SignalAll, at most for `limit`. It may also return before either (a spurious wakeup).
  void WaitFor(absl::Mutex* mu, absl::Duration limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Held held{mu};
    if (limit < absl::InfiniteDuration()) {
      changed_.wait_for(held, absl::ToChronoNanoseconds(limit));
    } else {
      changed_.wait(held);
    }
  }

 private:
  // Gives absl::Mutex the interface of a lock of the standard library. The mutex is held before and after the wait.
  struct Held {
    absl::Mutex* mu;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu->Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace trainyard
