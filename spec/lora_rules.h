// Checks `train.lora` beyond the ranges of single keys: each target must match a projection of the model. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// REQUIRES: as for ValidateJob. Returns false if the targets are so long that counting the adapters' parameters would
// take too long. That is also added to `problems`.
bool CheckLora(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
