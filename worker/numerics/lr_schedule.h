// The learning rate of each step. Pure: a resumed run needs only the step's number.
#pragma once

#include <cstdint>

namespace trainyard {

struct LrSchedule {
  enum class Kind { kCosine, kLinear, kConstant };
  Kind kind = Kind::kCosine;
  double peak = 3e-4;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double min_ratio = 0.1;  // the rate of the last step divided by the peak; ignored for kConstant
};

// The rate of `step`, counted from 1. It rises linearly to the peak at step `warmup_steps`, then falls to min_ratio x
// peak at the last step.
double LearningRateAt(const LrSchedule& schedule, uint64_t step);

}  // namespace trainyard
