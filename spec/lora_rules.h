// Checks `train.lora` beyond the ranges of single keys: each target must match a projection of the model. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// REQUIRES: as for ValidateJob. If it returns false, counting the adapters' parameters would take too long; this is
// reported.
bool CheckLora(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
