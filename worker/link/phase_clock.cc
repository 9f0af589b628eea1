#include "worker/link/phase_clock.h"

#include <algorithm>
#include <utility>

namespace trainyard {
namespace {

bool IsMeasured(Phase phase) {
  return phase == Phase::kFirstStep || phase == Phase::kTrain || phase == Phase::kEvaluate || phase == Phase::kSave;
}

}  // namespace

void PhaseClock::Enter(Phase phase, Time now) {
  if (IsMeasured(phase_)) {
    double& longest = longest_[phase_];
    longest = std::max(longest, Seconds(now));
  }
  phase_ = phase;
  began_ = now;
}

std::map<Phase, double> PhaseClock::TakeLongest() { return std::exchange(longest_, {}); }

}  // namespace trainyard
