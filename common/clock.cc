#include "common/clock.h"

#include <chrono>

namespace trainyard {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time TimeNow() override { return absl::Now(); }
};

class SteadyClock final : public Clock {
 public:
  absl::Time TimeNow() override { return wall_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_); }

 private:
  const std::chrono::steady_clock::time_point steady_ = std::chrono::steady_clock::now();
  const absl::Time wall_ = absl::Now();
};

}  // namespace

Clock& Clock::GetRealClock() {
  static RealClock* clock = new RealClock;
  return *clock;
}

Clock& Clock::GetSteadyClock() {
  static SteadyClock* clock = new SteadyClock;
  return *clock;
}

}  // namespace trainyard
