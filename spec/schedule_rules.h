// Checks and decisions of `train.schedule`. Pure.
#pragma once

#include <vector>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

void CheckSchedule(const v1::Train& train, const Positions& positions, Problems* problems);

// Sets the keys that the job leaves to Trainyard. Afterwards `warmup_steps` holds the warm-up, and `warmup_ratio` is 0.
// Returns what was decided, with reasons. REQUIRES: CheckSchedule has found no error, and the other defaults are set.
std::vector<v1::ResolvedKey> ResolveSchedule(v1::Train& train);

}  // namespace trainyard
