// The daemon's metrics: trainyard_worker_*, in base units. docs/metrics.md has the same list; a test compares the two.
// Call Observe on the event thread, the other functions on any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/metrics.h"
#include "worker/agent/core.h"
#include "worker/agent/rank_folder.h"

namespace trainyard::agent {

// All metrics.
const std::vector<MetricSpec>& WorkerMetricSpecs();

class WorkerMetrics {
 public:
  explicit WorkerMetrics(uint64_t log_bytes_per_rank);

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

  void Observe(const CoreStats& stats, size_t queue_length);
  void ObserveDisk(uint64_t free_bytes);
  void ObserveRankFolderLimits(const FolderLimits& folder_limits);
  void ObserveRankFolders(const RankFolders& folders);

 private:
  void Count(const MetricSpec& spec, uint64_t total);
  void Set(const MetricSpec& spec, double value);

  std::shared_ptr<prometheus::Registry> registry_;
  std::map<std::string, prometheus::Counter*> counters_;
  std::map<std::string, prometheus::Gauge*> gauges_;
};

}  // namespace trainyard::agent
