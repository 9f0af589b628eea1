// List scheduling: a simulation of a pipeline in which each rank, whenever it is free, begins the first possible action
// by a fixed priority. The order of the actions becomes the schedule. Pure.
#pragma once

#include <vector>

#include "plan/pipeline_schedule.h"

namespace trainyard {

struct ListPolicy {
  // True: a backward consists of I, the gradients of the inputs, and a later W, the gradients of the weights. The W
  // fills the time in which no other action is possible. False: a backward is one action, B.
  bool split_backward = false;
  // True: a possible backward begins before a possible forward. False: forwards come first, if in_flight permits.
  bool backward_first = true;
  // For each rank: a limit; no forward begins while this many micro-batches are in flight.
  std::vector<int> in_flight;
};

// An action begins only if its link has a slot for its output, so no send waits for a slot in a run with `costs`, and
// the schedule finishes whatever the durations are. Forwards and backwards keep the order of the micro-batches.
// REQUIRES: one chunk per rank, two stages or more, CheckCosts(costs) is OK, an entry of 1 or more in `in_flight` for
// each rank.
PipelineSchedule ListSchedule(const PipelineShape& shape, const PipelineCosts& costs, const ListPolicy& policy);

}  // namespace trainyard
