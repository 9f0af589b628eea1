// The times of a pipeline schedule for given durations: total, bubble, and what each rank has in flight. Pure;
// thread-safe.
#pragma once

#include <vector>

#include "plan/pipeline_schedule.h"

namespace trainyard {

struct ActionTimes {
  double start = 0;  // when the action begins, after it has received its input
  double end = 0;    // when its computation ends; the send may wait for a free slot after that
};

// Times are in the unit of the costs and begin at 0.
struct PipelineSimulation {
  double total = 0;                             // until the last rank has finished
  double bubble = 0;                            // the share of `total` in which a rank is idle, averaged over the ranks
  std::vector<double> busy;                     // of each rank: the sum of its durations
  std::vector<int> peak_in_flight;              // of each rank: forwards whose activations it holds at the same time
  std::vector<std::vector<ActionTimes>> times;  // of ranks[stage][i]
};

// Possible errors: InvalidArgument: costs as in CheckCosts, or a schedule that CheckSchedule refuses with
// `costs.slots_per_link` slots.
absl::StatusOr<PipelineSimulation> Simulate(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace trainyard
