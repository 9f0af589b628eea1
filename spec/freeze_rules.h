// Checks `train.freeze`: each glob must match a parameter, and at least one parameter must remain unmatched. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

void CheckFreeze(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
