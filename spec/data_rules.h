// Checks of `train.data`: where the data comes from, and which fields of its lines are used. Pure.
#pragma once

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

void CheckDataSource(const v1::Train& train, const Positions& positions, Problems* problems);

}  // namespace trainyard
