// Whether `train.freeze` says something: each glob matches a parameter, and something is left to train. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

void CheckFreeze(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
