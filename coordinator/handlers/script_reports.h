// What a script reports in addition to its progress: that it saves on request, and its checkpoints. Every report of
// rank 0 repeats both, so a lost report does no harm. Used on the core's thread only.
#pragma once

#include <cstdint>

#include "coordinator/core/turn.h"

namespace trainyard {

// The last step that a script can make, which is the maximum of train.steps.
inline constexpr uint64_t kScriptStepsMax = 1'000'000'000'000;

// Records a report of rank 0, if the job has a `command`, and publishes a checkpoint that is new or answers a request.
void RecordScriptReport(Turn& turn, Job& job, const v1::RankReport& report);

}  // namespace trainyard
