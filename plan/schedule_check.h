// Proves that the lists of a pipeline schedule finish when ranks and links behave as schedule_graph.h describes.
// Pure; thread-safe.
#pragma once

#include "plan/pipeline_schedule.h"

namespace trainyard {

// Accepts a schedule exactly if every rank reaches the end of its list with links of `slots_per_link` slots, whatever
// the durations. Possible errors, each with the lists (shortened if they are long): InvalidArgument: sizes that do not
// fit together, actions that are missing, unknown or duplicate, a backward before its forward, a W (gradients of the
// weights) before its I (gradients of the inputs), all in one message; a receiver that needs packets in another order
// than they are sent; a deadlock, with the ranks that wait for each other.
absl::Status CheckSchedule(const PipelineSchedule& schedule, int slots_per_link = kSlotsPerLink);

}  // namespace trainyard
