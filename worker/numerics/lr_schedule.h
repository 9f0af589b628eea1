// The learning rate of each step. Pure: a resumed run needs the step's number and nothing else.
#pragma once

#include <cstdint>

namespace trainyard {

struct LrSchedule {
  enum class Kind { kCosine, kLinear, kConstant };
  Kind kind = Kind::kCosine;
  double peak = 3e-4;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double min_ratio = 0.1;  // the rate of the last step over the peak; no effect on kConstant
};

// Rate of `step`, counted from 1. It rises in a straight line to the peak at step `warmup_steps`, then falls to
// min_ratio x peak at the last step.
double LearningRateAt(const LrSchedule& schedule, uint64_t step);

}  // namespace trainyard
