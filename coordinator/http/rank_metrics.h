// The part of the coordinator's metrics that shows which rank or host is to blame and how long recovery takes: speed
// and phases of ranks, stragglers, the times of the newest checkpoints and of the last contact with each host, the time
// that jobs spend in each state, and the number of decisions by each rule. Used by CoordinatorMetrics, on the loop's
// thread.
//
// The number of series is limited: of all jobs together, about kRankSeries ranks have series of their own. Each job
// gets an equal share of them, from kRanksPerJobMin to kRanksPerJob ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/metrics.h"
#include "coordinator/core/core.h"
#include "coordinator/http/gauge_set.h"

namespace trainyard {

// All metrics of this part.
const std::vector<MetricSpec>& RankMetricSpecs();

class RankMetrics {
 public:
  static constexpr size_t kRankSeries = 4096;
  static constexpr size_t kRanksPerJob = 256;
  static constexpr size_t kRanksPerJobMin = 8;

  explicit RankMetrics(prometheus::Registry& registry);

  void ObserveEffect(const Effect& effect);
  // For a scrape. `now` is the time of the loop's steady clock, `wall` that of the wall clock.
  void ObserveTotals(const Core& core, absl::Time now, absl::Time wall);

 private:
  // The newest state of a job, and the failure that it recovers from.
  struct JobTimes {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    absl::Time since;
    absl::Time failed_at = absl::InfiniteFuture();  // infinite: it is not recovering
  };

  void ObserveState(const JobId& job, const v1::Event& event);
  // These two return the number of ranks without series of their own.
  size_t ObserveJob(const Job& job, size_t ranks_shown);
  size_t ObserveRanks(const Job& job, const prometheus::Labels& labels, size_t ranks_shown);

  std::map<std::string, GaugeSet::Family*> gauges_;
  std::map<std::string, prometheus::Counter*> decisions_;         // by rule
  std::map<v1::JobState, prometheus::Histogram*> state_seconds_;  // of the states that are measured
  prometheus::Histogram* recovery_seconds_;
  GaugeSet current_;
  std::map<JobId, JobTimes> times_;
};

}  // namespace trainyard
