// Checks `train.lora` beyond the ranges of single keys: each target must match a projection of the model. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Returns false, after adding an error to `problems`, if the targets are so long that counting the adapters' parameters
// would take too long. REQUIRES: as for ValidateJob.
bool CheckLora(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
