// Measures how long each phase of a rank takes: the step under way, and the phases that ended since the last report.
// Pure; the caller reads a steady clock, so a change of the wall clock does not lengthen a phase.
#pragma once

#include <chrono>
#include <map>

#include "worker/link/link.h"

namespace trainyard {

class PhaseClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit PhaseClock(Time now) : began_(now) {}

  // Ends the present phase, or the present step of the same phase, and begins the next.
  void Enter(Phase phase, Time now);

  Phase phase() const { return phase_; }
  double Seconds(Time now) const { return std::chrono::duration<double>(now - began_).count(); }

  // Returns the longest duration of each phase that ended since the last call. Covers only the phases of training:
  // kFirstStep, kTrain, kEvaluate and kSave.
  std::map<Phase, double> TakeLongest();

 private:
  Phase phase_ = Phase::kStarting;
  Time began_;
  std::map<Phase, double> longest_;
};

}  // namespace trainyard
