#include "worker/numerics/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainyard {
namespace {

// Returns the factor of a decay: 1 at its start (`progress` 0), 0 at its end (`progress` 1).
double DecayHeight(LrSchedule::Decay shape, double progress) {
  switch (shape) {
    case LrSchedule::Decay::kCosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case LrSchedule::Decay::kSqrt:
      return 1 - std::sqrt(progress);
    case LrSchedule::Decay::kLinear:
      break;
  }
  return 1 - progress;
}

// Returns the share of the steps from `first` to `last` that are done at `step`, from 0 to 1; 0 if there are none.
double Progress(uint64_t step, uint64_t first, uint64_t last) {
  if (step <= first || last <= first) return 0;
  return std::min(static_cast<double>(step - first) / static_cast<double>(last - first), 1.0);
}

// Maps `height`, from 0 to 1, to the range from min_ratio to 1.
double AboveMinimum(const LrSchedule& schedule, double height) {
  return schedule.min_ratio + (1 - schedule.min_ratio) * height;
}

}  // namespace

double LearningRateAt(const LrSchedule& schedule, uint64_t step) {
  const uint64_t number = schedule.zero_based ? step - std::min<uint64_t>(step, 1) : step;
  const uint64_t warmup = schedule.warmup_steps, total = schedule.total_steps;
  if (number < warmup) {
    const double height = static_cast<double>(number) / static_cast<double>(warmup);
    const bool from_minimum = schedule.zero_based && schedule.kind == LrSchedule::Kind::kWsd;
    return schedule.peak * (from_minimum ? AboveMinimum(schedule, height) : height);
  }
  const uint64_t first = schedule.zero_based ? warmup : std::max<uint64_t>(warmup, 1);
  switch (schedule.kind) {
    case LrSchedule::Kind::kConstant:
      return schedule.peak;
    case LrSchedule::Kind::kInverseSqrt: {
      const double timescale = static_cast<double>(schedule.timescale);
      return schedule.peak * std::sqrt(timescale / (static_cast<double>(number - warmup) + timescale));
    }
    case LrSchedule::Kind::kWsd: {
      const uint64_t stable_end = std::max(first, total - std::min(schedule.decay_steps, total));
      return schedule.peak * AboveMinimum(schedule, DecayHeight(schedule.decay, Progress(number, stable_end, total)));
    }
    case LrSchedule::Kind::kCosine:
      return schedule.peak *
             AboveMinimum(schedule, DecayHeight(LrSchedule::Decay::kCosine, Progress(number, first, total)));
    case LrSchedule::Kind::kLinear:
      break;
  }
  return schedule.peak *
         AboveMinimum(schedule, DecayHeight(LrSchedule::Decay::kLinear, Progress(number, first, total)));
}

}  // namespace trainyard
