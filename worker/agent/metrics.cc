#include "worker/agent/metrics.h"

#include "common/logging.h"
#include "common/version.h"

namespace trainyard::agent {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;

constexpr MetricSpec kBuild = {"trainyard_worker_build_info", kGauge, "Always 1; the version is in the label.",
                               "version"};
constexpr MetricSpec kAttached = {"trainyard_worker_attached", kGauge,
                                  "1 while the stream to the coordinator is open."};
constexpr MetricSpec kTrouble = {"trainyard_worker_trouble", kGauge,
                                 "1 while nothing can be started on this host: the state folder or the socket is gone, "
                                 "the disk does not answer, or the programs were replaced after the daemon's start."};
constexpr MetricSpec kDials = {"trainyard_worker_dials_total", kCounter, "Attempts to reach the coordinator."};
constexpr MetricSpec kTrainers = {"trainyard_worker_trainers", kGauge, "Trainers that run on this host."};
constexpr MetricSpec kStarts = {"trainyard_worker_starts_total", kCounter, "Trainers started."};
constexpr MetricSpec kAdopted = {"trainyard_worker_adopted_total", kCounter,
                                 "Trainers of an earlier daemon process that this one adopted."};
constexpr MetricSpec kExits = {"trainyard_worker_exits_total", kCounter,
                               "Started or adopted trainers that have exited, for any reason."};
constexpr MetricSpec kFacts = {"trainyard_worker_facts_total", kCounter, "Facts put into the outbox."};
constexpr MetricSpec kFactsWaiting = {"trainyard_worker_facts_waiting", kGauge,
                                      "Facts that the coordinator has not yet acknowledged."};
constexpr MetricSpec kFactsDropped = {"trainyard_worker_facts_dropped_total", kCounter,
                                      "Facts dropped because they belonged to another cluster."};
constexpr MetricSpec kOutboxBytes = {"trainyard_worker_outbox_bytes", kGauge, "Bytes of the waiting facts."};
constexpr MetricSpec kOutboxOnDisk = {
    "trainyard_worker_outbox_on_disk", kGauge,
    "1 while facts are written to disk; 0 while the disk refuses writes or does not answer."};
constexpr MetricSpec kOutboxHangs = {"trainyard_worker_outbox_hangs", kGauge,
                                     "1 while a write of the outbox is blocked by the disk."};
constexpr MetricSpec kOutboxErrors = {"trainyard_worker_outbox_errors_total", kCounter,
                                      "Writes of the outbox that failed or hung."};
constexpr MetricSpec kQueue = {"trainyard_worker_queue_length", kGauge, "Events waiting for the core."};
constexpr MetricSpec kDiskFree = {"trainyard_worker_disk_free_bytes", kGauge,
                                  "Free space on the disk of the state folder."};
constexpr MetricSpec kFolders = {"trainyard_worker_rank_folders", kGauge, "Stored rank folders."};
constexpr MetricSpec kFoldersLimit = {"trainyard_worker_rank_folders_limit", kGauge,
                                      "Above this number, folders of ended ranks are removed, oldest first."};
constexpr MetricSpec kFolderBytes = {"trainyard_worker_rank_folder_bytes", kGauge,
                                     "Bytes in rank folders, nearly all of them output."};
constexpr MetricSpec kFolderBytesLimit = {"trainyard_worker_rank_folder_bytes_limit", kGauge,
                                          "Above this size, folders of ended ranks are removed, oldest first."};
constexpr MetricSpec kLogDropped = {"trainyard_worker_log_lines_dropped_total", kCounter,
                                    "Lines of the daemon's log dropped because they could not be written in time."};
constexpr MetricSpec kLogBytesLimit = {"trainyard_worker_log_bytes_per_rank_limit", kGauge,
                                       "Limit for the stored output of one trainer."};

}  // namespace

const std::vector<MetricSpec>& WorkerMetricSpecs() {
  static const auto* specs = new std::vector<MetricSpec>{
      kBuild,    kAttached,     kTrouble,      kDials,       kTrainers,         kStarts,        kAdopted,      kExits,
      kFacts,    kFactsWaiting, kFactsDropped, kOutboxBytes, kOutboxOnDisk,     kOutboxHangs,   kOutboxErrors, kQueue,
      kDiskFree, kFolders,      kFoldersLimit, kFolderBytes, kFolderBytesLimit, kLogBytesLimit, kLogDropped};
  return *specs;
}

WorkerMetrics::WorkerMetrics(uint64_t log_bytes_per_rank) : registry_(std::make_shared<prometheus::Registry>()) {
  for (const MetricSpec& spec : WorkerMetricSpecs()) {
    std::map<std::string, std::string> labels;
    if (spec.name == kBuild.name) labels = {{"version", kVersion}};
    if (spec.kind == kCounter) counters_[spec.name] = &CounterFamily(*registry_, spec).Add(labels);
    if (spec.kind == kGauge) gauges_[spec.name] = &GaugeFamily(*registry_, spec).Add(labels);
  }
  Set(kBuild, 1);
  Set(kLogBytesLimit, static_cast<double>(log_bytes_per_rank));
}

// The core counts totals; the counter is raised to the core's total.
void WorkerMetrics::Count(const MetricSpec& spec, uint64_t total) {
  prometheus::Counter& counter = *counters_.at(spec.name);
  double more = static_cast<double>(total) - counter.Value();
  if (more > 0) counter.Increment(more);
}

void WorkerMetrics::Set(const MetricSpec& spec, double value) { gauges_.at(spec.name)->Set(value); }

void WorkerMetrics::Observe(const CoreStats& stats, size_t queue_length) {
  Set(kAttached, stats.attached ? 1 : 0);
  Set(kTrouble, stats.trouble ? 1 : 0);
  Set(kTrainers, static_cast<double>(stats.trainers));
  Set(kFactsWaiting, static_cast<double>(stats.facts_waiting));
  Set(kOutboxBytes, static_cast<double>(stats.outbox_bytes));
  Set(kOutboxOnDisk, stats.outbox_on_disk ? 1 : 0);
  Set(kOutboxHangs, stats.outbox_hangs ? 1 : 0);
  Set(kQueue, static_cast<double>(queue_length));
  Count(kDials, stats.dials);
  Count(kStarts, stats.starts);
  Count(kAdopted, stats.adopted);
  Count(kExits, stats.exits);
  Count(kFacts, stats.facts);
  Count(kFactsDropped, stats.facts_dropped);
  Count(kOutboxErrors, stats.outbox_errors);
  Count(kLogDropped, LogLinesDropped());
}

void WorkerMetrics::ObserveDisk(uint64_t free_bytes) { Set(kDiskFree, static_cast<double>(free_bytes)); }

void WorkerMetrics::ObserveRankFolderLimits(const FolderLimits& folder_limits) {
  Set(kFoldersLimit, static_cast<double>(folder_limits.folders));
  Set(kFolderBytesLimit, static_cast<double>(folder_limits.bytes));
}

void WorkerMetrics::ObserveRankFolders(const RankFolders& folders) {
  Set(kFolders, static_cast<double>(folders.count));
  Set(kFolderBytes, static_cast<double>(folders.bytes));
}

}  // namespace trainyard::agent
