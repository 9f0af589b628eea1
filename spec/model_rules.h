// Checks `train.model` beyond the ranges of single keys: the relations that a family requires, and keys that it does
// not have. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// REQUIRES: as for ValidateJob.
void CheckModelKeys(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
