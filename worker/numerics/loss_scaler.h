// The factor that keeps the gradients of fp16 above the least number it has: the loss is multiplied by it before
// backward, the gradients are divided by it in the update. It is as large as can be without overflow, found by trying:
// up after many good steps, down after an overflow, in which the step is skipped. Pure; every rank computes the same.
#pragma once

#include <cstdint>

namespace trainyard {

struct LossScaleConfig {
  double initial = 65536;
  uint64_t window = 1000;   // good steps in a row before it doubles
  double backoff = 0.5;     // what an overflow multiplies it by
  uint64_t hysteresis = 2;  // so many overflows since it last doubled are needed for that; 1: each one counts
  double min = 1;
  bool dynamic = true;  // false: `initial` for ever
};

// In the checkpoint.
struct LossScale {
  double scale = 1;
  uint64_t good_steps = 0;  // in a row
  uint64_t hysteresis_left = 0;

  bool operator==(const LossScale&) const = default;
};

LossScale InitialLossScale(const LossScaleConfig& config);

// After a step; `overflow`: a gradient of some rank was not finite, and all skipped the update.
LossScale NextLossScale(const LossScale& now, const LossScaleConfig& config, bool overflow);

// What backward is seeded with instead of 1, for a loss that is a sum over `num_tokens`: `scale` over the next power of
// two, so that gradients are as large as those of a mean loss and the division is exact.
double LossSeed(double scale, uint64_t num_tokens);

}  // namespace trainyard
