// The options, inputs and outputs of an update.
#pragma once

#include <cstdint>

#include "common/defaults.h"
#include "worker/numerics/adamw.h"
#include "worker/numerics/loss_scaler.h"

namespace trainyard {

struct UpdateOptions {
  AdamWConfig optimizer = {};
  double clip_norm = 1.0;                                    // 0: no clipping
  LossScaleConfig loss_scale = {};                           // used if the precision requires a loss scale
  int64_t tile_elements = defaults::kOptimizerTileElements;  // elements that are updated at a time
};

struct StepInput {
  double lr = 0;
  uint64_t num_tokens = 0;  // targets with a loss, over all ranks: the divisor; 0: the step has no update
};

struct StepOutput {
  double gradient_norm = 0;     // of the mean gradient, before clipping
  double exposed_comm_s = 0;    // time this rank waited for communication in this step
  uint64_t num_reductions = 0;  // operations that reduced this rank's gradients
  double loss_scale = 1;        // of this step
  bool skipped = false;         // the gradient was not finite: no rank updated anything
};

}  // namespace trainyard
