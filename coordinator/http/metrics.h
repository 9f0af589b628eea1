// The coordinator's metrics: trainyard_*, in base units. A test compares the table in docs/metrics.md with them.
// Metrics are counted from effects and from rounds of the loop, so that handlers need no code for them. Series with a
// job's id are dropped when the job is final, and those of a namespace when it is not configured and has no unfinished
// jobs, so their number is limited by the unfinished jobs.
//
// Totals are counted on request: a scrape waits for the loop's next round, which comes with the next event or tick. So
// a scrape shows older values only if the loop is blocked (see Collect), and totals cost nothing without scrapes.
//
// Observe* are called on the loop's thread, except ObserveCall, which is called on any thread, like CountRpc,
// CountWebhook and Collect.
#pragma once

#include <prometheus/collectable.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/http_exchange.h"
#include "common/log_rate_limiter.h"
#include "common/metrics.h"
#include "common/steady_cond_var.h"
#include "coordinator/core/core_loop.h"
#include "coordinator/http/gauge_set.h"
#include "coordinator/http/rank_metrics.h"

namespace trainyard {

// All metrics.
const std::vector<MetricSpec>& CoordinatorMetricSpecs();

class CoordinatorMetrics final : public prometheus::Collectable {
 public:
  CoordinatorMetrics();

  // Handles a scrape. Waits at most a second for a blocked loop; then the totals are those of the previous scrape.
  std::vector<prometheus::MetricFamily> Collect() const override;
  // All metrics as last counted.
  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

  void ObserveEffect(const Effect& effect);
  void ObserveRound(const LoopRound& round, const Core& core, absl::Time now);
  void CountRpc(const char* method, absl::StatusCode code);
  // A call with one answer, from its arrival to its answer.
  void ObserveCall(const char* method, absl::Duration duration);
  void CountWebhook(bool delivered);
  // Counts what the HTTP port reports, and logs refusals from time to time. REQUIRES: this object outlives the port.
  HttpObserver MakeHttpObserver();

 private:
  struct MemoryLabels {
    const char* metric;
    size_t rank;
    std::string kind;
    bool operator<(const MemoryLabels& other) const {
      return std::tie(metric, rank, kind) < std::tie(other.metric, other.rank, other.kind);
    }
  };
  struct MemoryGauge {
    prometheus::Gauge* gauge = nullptr;
    uint64_t scrape = 0;  // the scrape in which it was last set
  };
  struct JobSeries {
    prometheus::Labels labels;  // common labels of the series
    // This gauge and the next four are null for a command until it has reported a step, which it may never do; `loss`
    // is null until a step has a loss.
    prometheus::Gauge* step = nullptr;
    prometheus::Gauge* loss = nullptr;
    prometheus::Gauge* tokens_per_second = nullptr;
    prometheus::Gauge* exposed = nullptr;
    prometheus::Gauge* bubble = nullptr;
    std::vector<prometheus::Gauge*> goodput;  // in the order of kGoodputParts
    std::map<MemoryLabels, MemoryGauge> memory;
  };

  JobSeries& SeriesOf(const Job& job);
  void AddStepGauges(const Job& job, JobSeries& series);
  void ObserveStep(const JobId& job, const v1::StepReport& step);
  void ObserveNewestSteps(const Core& core);
  void ObserveTotals(const Core& core);
  void ObserveGoodput(const Core& core, absl::Time now);
  void ObserveMemory(const Core& core);
  void ObserveMemoryOf(const Job& job, JobSeries& series);
  void LogRefused(const char* reason, const std::string& peer);
  void ObserveQueue(const Core& core, absl::Time now);

  std::shared_ptr<prometheus::Registry> registry_;
  std::map<std::string, prometheus::Family<prometheus::Counter>*> counters_;
  std::map<std::string, prometheus::Family<prometheus::Gauge>*> gauges_;
  std::map<std::string, prometheus::Family<prometheus::Histogram>*> histograms_;
  std::map<JobId, JobSeries> jobs_;
  uint64_t memory_scrape_ = 0;                                     // the number of scrapes that counted memory
  GaugeSet queue_gauges_;                                          // of namespaces
  std::map<std::string, prometheus::Counter*> preemptions_;        // by namespace
  std::map<JobId, v1::StepReport> newest_steps_;                   // of this round
  absl::flat_hash_map<const char*, prometheus::Counter*> events_;  // by name, identified by its address
  prometheus::Counter* records_;
  prometheus::Counter* commit_failures_;
  prometheus::Counter* reports_dropped_;
  prometheus::Counter* log_dropped_;
  prometheus::Gauge* stalled_;
  prometheus::Counter* tokens_;
  prometheus::Counter* saves_;
  prometheus::Counter* failed_saves_;
  prometheus::Counter* saved_bytes_;
  prometheus::Histogram* step_seconds_;
  prometheus::Histogram* save_seconds_;
  prometheus::Histogram* commit_seconds_;
  prometheus::Histogram* handle_seconds_;
  prometheus::Gauge* queue_length_;
  RankMetrics rank_metrics_;
  prometheus::Gauge* http_streams_;

  absl::Mutex refused_mu_;
  std::map<std::string, LogRateLimiter> refused_ ABSL_GUARDED_BY(refused_mu_);

  mutable absl::Mutex mu_;
  mutable SteadyCondVar counted_;
  mutable uint64_t scrapes_requested_ ABSL_GUARDED_BY(mu_) = 0;  // scrapes that requested totals
  uint64_t scrapes_answered_ ABSL_GUARDED_BY(mu_) = 0;           // those that were answered
};

}  // namespace trainyard
