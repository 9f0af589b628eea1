#include "worker/numerics/loss_scaler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace trainyard {

LossScale InitialLossScale(const LossScaleConfig& config) {
  return {.scale = config.initial, .good_steps = 0, .hysteresis_left = config.hysteresis};
}

LossScale FitLossScale(const LossScale& restored, const LossScaleConfig& config) {
  LossScale fitting = restored;
  // NextLossScale never returns less than the minimum, so an overflow would raise a scale below it.
  fitting.scale = std::max(restored.scale, config.min);
  fitting.hysteresis_left = std::min(restored.hysteresis_left, config.hysteresis);
  return fitting;
}

LossScale NextLossScale(const LossScale& now, const LossScaleConfig& config, bool overflow) {
  if (!config.dynamic) return now;
  LossScale next = now;
  if (overflow) {
    next.good_steps = 0;
    if (next.hysteresis_left > 0) --next.hysteresis_left;
    if (next.hysteresis_left == 0) next.scale = std::max(config.min, next.scale * config.backoff);
    return next;
  }
  if (++next.good_steps < config.window) return next;
  return {.scale = now.scale * 2, .good_steps = 0, .hysteresis_left = config.hysteresis};
}

double LossSeed(double scale, uint64_t num_tokens) {
  const int exponent = num_tokens <= 1 ? 0 : std::bit_width(num_tokens - 1);
  return std::ldexp(scale, -exponent);
}

}  // namespace trainyard
