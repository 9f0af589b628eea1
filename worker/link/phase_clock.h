// How long each phase of a rank takes: the step under way, and what ended since the last report. Pure; times are those
// of a steady clock, which the caller reads. A change of the wall clock thus makes no phase long.
#pragma once

#include <chrono>
#include <map>

#include "worker/link/link.h"

namespace trainyard {

class PhaseClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit PhaseClock(Time now) : began_(now) {}

  // Ends what was under way: another phase, or a step of the same one.
  void Enter(Phase phase, Time now);

  Phase phase() const { return phase_; }
  double Seconds(Time now) const { return std::chrono::duration<double>(now - began_).count(); }

  // The longest of each phase that ended since the last call. Of kFirstStep, kTrain, kEvaluate and kSave only: the
  // others are no work.
  std::map<Phase, double> TakeLongest();

 private:
  Phase phase_ = Phase::kStarting;
  Time began_;
  std::map<Phase, double> longest_;
};

}  // namespace trainyard
