// The learning rate of each step. Pure: a resumed run needs only the step's number. The formulas with a zero-based step
// are those of transformers/optimization.py (https://github.com/huggingface/transformers).
#pragma once

#include <cstdint>

namespace trainyard {

struct LrSchedule {
  enum class Kind { kCosine, kLinear, kConstant, kInverseSqrt, kWsd };
  enum class Decay { kCosine, kLinear, kSqrt };
  Kind kind = Kind::kCosine;
  double peak = 3e-4;
  uint64_t warmup_steps = 0;
  uint64_t total_steps = 1;
  double min_ratio = 0.1;  // the rate at the end of the decay, divided by the peak; kCosine, kLinear and kWsd
  // True: as in transformers, the first step is number 0, so that it has the rate 0 if there is a warm-up (kWsd:
  // min_ratio x peak), and the decay would end one step after the last. False: the first step is number 1.
  bool zero_based = false;
  uint64_t decay_steps = 0;      // of kWsd: the last steps, in which the rate falls
  Decay decay = Decay::kCosine;  // of kWsd
  uint64_t timescale = 10000;    // of kInverseSqrt; at least 1
};

// The rate of `step`, counted from 1. It rises linearly to the peak at the end of `warmup_steps`, then it follows
// `kind`: kConstant keeps the peak; kCosine, kLinear and kWsd reach min_ratio x peak at the last step.
double LearningRateAt(const LrSchedule& schedule, uint64_t step);

}  // namespace trainyard
