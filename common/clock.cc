#include "common/clock.h"

namespace trainyard {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time TimeNow() override { return absl::Now(); }
};

}  // namespace

Clock& Clock::GetRealClock() {
  static RealClock* clock = new RealClock;
  return *clock;
}

}  // namespace trainyard
