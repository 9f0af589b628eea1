// The loss scale keeps fp16 gradients above the smallest fp16 number: the loss is multiplied by it before backward, and
// the update divides the gradients by it. It is adjusted dynamically to the largest value without overflow: it grows
// after many good steps and shrinks after an overflow, in which case the step is skipped. Pure; every rank computes the
// same value.
#pragma once

#include <cstdint>

namespace trainyard {

struct LossScaleConfig {
  double initial = 65536;
  uint64_t window = 1000;  // good steps in a row before the scale doubles
  double backoff = 0.5;    // an overflow multiplies the scale by this
  // The first overflows since the scale last doubled do not lower it: only overflow number `hysteresis` and each later
  // one do. 1: every overflow lowers it.
  uint64_t hysteresis = 2;
  double min = 1;
  bool dynamic = true;  // false: always `initial`
};

// Stored in the checkpoint.
struct LossScale {
  double scale = 1;
  uint64_t good_steps = 0;  // in a row
  uint64_t hysteresis_left = 0;

  bool operator==(const LossScale&) const = default;
};

LossScale InitialLossScale(const LossScaleConfig& config);

// The dynamic scale of a checkpoint, made to fit the settings of a job that continues with it and may have others than
// the job that wrote the checkpoint.
LossScale FitLossScale(const LossScale& restored, const LossScaleConfig& config);

// Call after each step. `overflow`: the gradient of some rank was not finite, so all ranks skipped the update.
LossScale NextLossScale(const LossScale& now, const LossScaleConfig& config, bool overflow);

// The factor with which backward is started instead of 1, for a loss that is a sum over `num_tokens`: `scale` divided
// by the smallest power of two that is at least `num_tokens`, so that gradients are about as large as for a mean
// loss and the division is exact.
double LossSeed(double scale, uint64_t num_tokens);

}  // namespace trainyard
