// The schedules that are found by simulation: zero_bubble and simulated.
#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/generators.h"
#include "plan/list_scheduling.h"
#include "plan/schedule_simulation.h"

namespace trainyard {
namespace {

int InFlightLimit(const PipelineShape& shape, const SimulatedOptions& options) {
  return options.in_flight == 0 ? shape.stages : options.in_flight;
}

// The shortest schedule so far; of equally short ones, the one with fewer micro-batches in flight.
class Shortest {
 public:
  Shortest(const PipelineCosts& costs, int in_flight) : costs_(costs), in_flight_(in_flight) {}

  void Offer(PipelineSchedule schedule) {
    const auto simulation = Simulate(schedule, costs_);
    if (!simulation.ok()) return;  // the candidate needs more slots than the links have
    const std::vector<int>& peaks = simulation->peak_in_flight;
    if (*std::max_element(peaks.begin(), peaks.end()) > in_flight_) return;
    const int sum = std::accumulate(peaks.begin(), peaks.end(), 0);
    if (!best_.ranks.empty() && std::pair(simulation->total, sum) >= std::pair(total_, sum_)) return;
    best_ = std::move(schedule);
    total_ = simulation->total;
    sum_ = sum;
  }

  PipelineSchedule Take() { return std::move(best_); }

 private:
  const PipelineCosts& costs_;
  const int in_flight_;
  PipelineSchedule best_;
  double total_ = 0;
  int sum_ = 0;
};

}  // namespace

PipelineSchedule ZeroBubbleSchedule(const PipelineShape& shape, const SimulatedOptions& options) {
  ListPolicy policy{.split_backward = true, .backward_first = true, .in_flight = {}};
  policy.in_flight.assign(shape.stages, InFlightLimit(shape, options));
  return ListSchedule(shape, options.costs, policy);
}

PipelineSchedule SimulatedSchedule(const PipelineShape& shape, const SimulatedOptions& options) {
  const int limit = InFlightLimit(shape, options);
  Shortest shortest(options.costs, limit);
  // 1f1b and gpipe are candidates, so that the result is never slower than either within the same memory.
  shortest.Offer(OneForwardOneBackwardSchedule(shape));
  shortest.Offer(GpipeSchedule(shape));
  for (const bool backward_first : {true, false}) {
    ListPolicy policy{.split_backward = false, .backward_first = backward_first, .in_flight = {}};
    policy.in_flight.assign(shape.stages, limit);
    shortest.Offer(ListSchedule(shape, options.costs, policy));
    // The second policy allows each rank as many micro-batches in flight as 1f1b has there.
    for (int stage = 0; stage < shape.stages; ++stage) policy.in_flight[stage] = std::min(limit, shape.stages - stage);
    shortest.Offer(ListSchedule(shape, options.costs, policy));
  }
  return shortest.Take();
}

}  // namespace trainyard
