// Time as a dependency: whoever needs the time is given a Clock, so that a test can hold it. The interface is that of
// absl::Clock of 2026, less the waiting.
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

  // The machine's clock. Never deleted.
  static Clock& GetRealClock();
  // The machine's steady clock, read as time that has passed since the wall clock was read once, at its first use: a
  // step of the wall clock moves it by nothing. For deadlines, and for stamps that may be a little off. Never deleted.
  static Clock& GetSteadyClock();
};

// Moves only when told. Thread-safe.
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
