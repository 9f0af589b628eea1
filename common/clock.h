// Time as a dependency: code that needs the time is given a Clock, so that a test can stop it. The interface is that of
// absl::Clock of 2026, without the waiting functions.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace trainyard {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time TimeNow() = 0;

  // The wall clock. Never deleted.
  static Clock& GetRealClock();
  // The steady clock, expressed as a wall clock time: the wall clock is read once, at the first use, and the time that
  // has passed since is added. Steps of the wall clock do not change it. For deadlines, and for timestamps that may be
  // slightly off. Never deleted.
  static Clock& GetSteadyClock();
};

// A clock that moves only by AdvanceTime, for tests. Thread-safe.
class SimulatedClock final : public Clock {
 public:
  explicit SimulatedClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000)) : now_(start) {}

  absl::Time TimeNow() override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  void AdvanceTime(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
