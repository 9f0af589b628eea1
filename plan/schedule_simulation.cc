#include "plan/schedule_simulation.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "plan/schedule_check.h"
#include "plan/schedule_graph.h"

namespace trainyard {
namespace {

int PeakInFlight(const std::vector<PipelineAction>& list) {
  int in_flight = 0, peak = 0;
  for (const PipelineAction& action : list) {
    if (action.kind == PipelineAction::kForward) peak = std::max(peak, ++in_flight);
    if (action.kind == PipelineAction::kBackward || action.kind == PipelineAction::kBackwardWeight) --in_flight;
  }
  return peak;
}

}  // namespace

absl::StatusOr<PipelineSimulation> Simulate(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  std::vector<std::string> problems = ListProblems(schedule);
  // The sizes must be valid before the costs can be compared with them.
  if (!problems.empty()) return CheckSchedule(schedule, costs.slots_per_link);
  RETURN_IF_ERROR(CheckCosts(costs, schedule.shape));
  const ScheduleGraph graph = BuildScheduleGraph(schedule, costs.slots_per_link, &problems);
  if (!problems.empty()) return CheckSchedule(schedule, costs.slots_per_link);
  const ScheduleRun run = RunSchedule(schedule, graph, costs);
  if (!run.finished) return CheckSchedule(schedule, costs.slots_per_link);

  PipelineSimulation result;
  result.total = *std::max_element(run.sent.begin(), run.sent.end());
  double busy_sum = 0;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<ActionTimes> times;
    double busy = 0;
    for (int number = graph.first[rank]; number < graph.first[rank + 1]; ++number) {
      times.push_back({.start = run.start[number], .end = run.end[number]});
      busy += run.end[number] - run.start[number];
    }
    busy_sum += busy;
    result.busy.push_back(busy);
    result.peak_in_flight.push_back(PeakInFlight(schedule.ranks[rank]));
    result.times.push_back(std::move(times));
  }
  // Rounding may make the sum of durations exceed the total by an ulp.
  result.bubble = std::max(0.0, 1 - busy_sum / (result.total * static_cast<double>(schedule.ranks.size())));
  return result;
}

}  // namespace trainyard
