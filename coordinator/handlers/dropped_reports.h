// Step reports that a daemon dropped because it could not reach the coordinator for too long. A notice of the first
// drop is published immediately. Further drops within a minute are published together when the minute is over.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

void RecordDroppedReports(Turn& turn, Job& job, const Rank& rank, uint64_t count);

// Called by the tick.
void PublishDroppedReports(Turn& turn, Job& job);

}  // namespace trainyard
