#include "worker/numerics/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainyard {

double LearningRateAt(const LrSchedule& schedule, uint64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == LrSchedule::Kind::kConstant) return schedule.peak;

  // 0 at the peak, 1 at the last step. If the warm-up is as long as the job, the rate never falls.
  uint64_t first = std::max<uint64_t>(schedule.warmup_steps, 1);
  if (schedule.total_steps <= first) return schedule.peak;
  double progress =
      static_cast<double>(step - std::min(step, first)) / static_cast<double>(schedule.total_steps - first);
  progress = std::min(progress, 1.0);
  double height =
      schedule.kind == LrSchedule::Kind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return schedule.peak * (schedule.min_ratio + (1 - schedule.min_ratio) * height);
}

}  // namespace trainyard
