#include "coordinator/http/metrics.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/version.h"
#include "coordinator/handlers/queue_totals.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/lifecycle.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// A scrape waits at most this long for a round of the loop. Each tick causes a round, ten times per second.
constexpr absl::Duration kScrapeWait = absl::Seconds(1);
constexpr absl::Duration kRefusedLogPeriod = absl::Minutes(10);

constexpr MetricSpec kBuild = {"trainyard_coordinator_build_info", MetricKind::kGauge,
                               "Always 1; the version is in the label.", "version"};
constexpr MetricSpec kJobs = {"trainyard_jobs", MetricKind::kGauge,
                              "Known jobs by state; finished jobs are counted until they are dropped from the history.",
                              "state"};
constexpr MetricSpec kHosts = {"trainyard_hosts", MetricKind::kGauge,
                               "Hosts by state: attached (stream open), unreachable (lease expired).", "state"};
constexpr MetricSpec kSlots = {"trainyard_slots", MetricKind::kGauge, "Slots of reachable hosts by state: free, used.",
                               "state"};
constexpr MetricSpec kStep = {"trainyard_job_step", MetricKind::kGauge, "Newest step of an unfinished job.",
                              "job_id, job_name"};
constexpr MetricSpec kLoss = {"trainyard_job_loss", MetricKind::kGauge, "Loss of the newest step of an unfinished job.",
                              "job_id, job_name"};
constexpr MetricSpec kTokensPerSecond = {"trainyard_job_tokens_per_second", MetricKind::kGauge,
                                         "Tokens of the newest step of all ranks, divided by its wall time.",
                                         "job_id, job_name"};
constexpr MetricSpec kExposed = {"trainyard_job_exposed_communication_seconds", MetricKind::kGauge,
                                 "Time that rank 0 waited for communication in the newest step of an unfinished job.",
                                 "job_id, job_name"};
constexpr MetricSpec kBubble = {"trainyard_job_bubble_share", MetricKind::kGauge,
                                "The share of a step in which the ranks of an unfinished job have nothing to compute "
                                "because of its pipeline, from a simulation of the schedule; 0 without a pipeline.",
                                "job_id, job_name"};
constexpr MetricSpec kGoodput = {"trainyard_job_goodput_seconds", MetricKind::kGauge,
                                 "How the ranks of an unfinished job spent their time, summed over ranks: queue, "
                                 "start, train, save, lost, detect, recover, pause.",
                                 "job_id, job_name, part"};
constexpr MetricSpec kMemory = {
    "trainyard_rank_memory_bytes", MetricKind::kGauge,
    "Bytes that a running rank held in its newest report, by kind: parameters, gradients, optimizer, "
    "buffers, activations, host, reserved, snapshots; first 256 ranks only.",
    "job_id, job_name, rank, stage, kind"};
constexpr MetricSpec kPeakMemory = {"trainyard_rank_memory_peak_bytes", MetricKind::kGauge,
                                    "The most bytes of each kind that the rank has held since it began to train.",
                                    "job_id, job_name, rank, stage, kind"};
constexpr MetricSpec kTokens = {
    "trainyard_tokens_total", MetricKind::kCounter,
    "Tokens used in training, all jobs; a step counts once, even when a restart repeats it."};
constexpr MetricSpec kStepSeconds = {"trainyard_step_seconds", MetricKind::kHistogram,
                                     "Wall time of optimizer steps, all jobs."};
constexpr MetricSpec kFailures = {"trainyard_failures_total", MetricKind::kCounter,
                                  "Generations that failed, by cause.", "cause"};
constexpr MetricSpec kTransitions = {"trainyard_job_transitions_total", MetricKind::kCounter,
                                     "Changes of a job's state, by the state entered.", "state"};
constexpr MetricSpec kSaves = {"trainyard_checkpoints_total", MetricKind::kCounter, "Checkpoints recorded."};
constexpr MetricSpec kSavedBytes = {"trainyard_checkpoint_bytes_total", MetricKind::kCounter,
                                    "Bytes of the checkpoints recorded."};
constexpr MetricSpec kSaveSeconds = {"trainyard_checkpoint_seconds", MetricKind::kHistogram,
                                     "Duration of a save, as reported by rank 0."};
constexpr MetricSpec kFailedSaves = {"trainyard_checkpoint_failures_total", MetricKind::kCounter,
                                     "Saves that failed, including failed tries of a last save."};
constexpr MetricSpec kEvents = {"trainyard_core_events_total", MetricKind::kCounter, "Events handled by the core.",
                                "event"};
constexpr MetricSpec kQueue = {"trainyard_core_queue_length", MetricKind::kGauge, "Events waiting for the core."};
constexpr MetricSpec kHandleSeconds = {"trainyard_core_handle_seconds", MetricKind::kHistogram,
                                       "Time that the core needed for a batch of events."};
constexpr MetricSpec kCommitSeconds = {"trainyard_store_commit_seconds", MetricKind::kHistogram,
                                       "Time that the store needed to make a batch durable."};
constexpr MetricSpec kRecords = {"trainyard_store_records_total", MetricKind::kCounter, "Records written or deleted."};
constexpr MetricSpec kCommitFailures = {"trainyard_store_commit_failures_total", MetricKind::kCounter,
                                        "Commits that the store refused; they are retried."};
constexpr MetricSpec kStalled = {"trainyard_store_stalled", MetricKind::kGauge,
                                 "1 while the store accepts no writes: only reads are answered."};
constexpr MetricSpec kReportsDropped = {"trainyard_reports_shed_total", MetricKind::kCounter,
                                        "Reports of ranks dropped because too many events waited for the core; never "
                                        "the steps of rank 0."};
constexpr MetricSpec kEventsDropped = {"trainyard_events_dropped_total", MetricKind::kCounter,
                                       "Events dropped because of a limit; watchers can no longer get them.", "kind"};
constexpr MetricSpec kDurableBytes = {"trainyard_durable_event_bytes", MetricKind::kGauge,
                                      "Size of all jobs' durable events."};
constexpr MetricSpec kForgotten = {"trainyard_jobs_forgotten_total", MetricKind::kCounter,
                                   "Finished jobs dropped from the history because of its limit."};
constexpr MetricSpec kQueuedJobs = {"trainyard_queue_jobs", MetricKind::kGauge, "Jobs that wait for slots.",
                                    "namespace"};
constexpr MetricSpec kOldestWait = {"trainyard_queue_oldest_wait_seconds", MetricKind::kGauge,
                                    "Waiting time of the job that has waited longest; 0: none waits.", "namespace"};
constexpr MetricSpec kPreemptions = {"trainyard_preemptions_total", MetricKind::kCounter,
                                     "Jobs that were ended because a job of a higher priority gets their slots.",
                                     "namespace"};
constexpr MetricSpec kNamespaceUse = {
    "trainyard_namespace_used", MetricKind::kGauge,
    "What the jobs of a namespace use, also while they start again: slots, gpus, running (jobs).",
    "namespace, resource"};
constexpr MetricSpec kNamespaceLimit = {"trainyard_namespace_limit", MetricKind::kGauge,
                                        "The configured limits of a namespace: slots, gpus, running (jobs), queued "
                                        "(jobs).",
                                        "namespace, resource"};
constexpr MetricSpec kWebhooks = {"trainyard_webhooks_total", MetricKind::kCounter,
                                  "Webhooks of ended jobs by result: delivered, or failed after all attempts.",
                                  "result"};
constexpr MetricSpec kLogDropped = {
    "trainyard_log_lines_dropped_total", MetricKind::kCounter,
    "Lines of the coordinator's log dropped because they could not be written in time."};
constexpr MetricSpec kRpcSeconds = {"trainyard_rpc_seconds", MetricKind::kHistogram,
                                    "Time from the arrival of a call with one answer until its answer.", "method"};
constexpr MetricSpec kRpcs = {"trainyard_rpcs_total", MetricKind::kCounter, "Calls and streams ended, by their status.",
                              "method, code"};

constexpr MetricSpec kHttpResponses = {"trainyard_http_responses_total", MetricKind::kCounter,
                                       "Responses of this port by their HTTP code; a stream counts when it begins.",
                                       "code"};
constexpr MetricSpec kHttpRefused = {"trainyard_http_refused_total", MetricKind::kCounter,
                                     "Requests and connections to this port that were refused or ended because of a "
                                     "limit or an error in HTTP, by reason.",
                                     "reason"};
constexpr MetricSpec kHttpStreams = {"trainyard_http_streams", MetricKind::kGauge,
                                     "Open streams of events, watched jobs and logs on this port."};

const Buckets kFastBuckets = {1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1, 5};
const Buckets kStepBuckets = {1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

std::string Lower(absl::string_view text) { return absl::AsciiStrToLower(text); }

const char* DroppedKindName(DroppedKind kind) {
  switch (kind) {
    case DroppedKind::kDurable:
      return "durable";
    case DroppedKind::kReport:
      return "report";
    case DroppedKind::kCluster:
      return "cluster";
  }
  return "";
}

}  // namespace

const std::vector<MetricSpec>& CoordinatorMetricSpecs() {
  static const auto* specs = [] {
    auto* specs = new std::vector<MetricSpec>{
        kBuild,         kJobs,           kHosts,       kSlots,        kStep,           kLoss,          kTokensPerSecond,
        kExposed,       kBubble,         kTokens,      kStepSeconds,  kFailures,       kTransitions,   kSaves,
        kSavedBytes,    kSaveSeconds,    kFailedSaves, kEvents,       kQueue,          kHandleSeconds, kCommitSeconds,
        kRecords,       kCommitFailures, kStalled,     kMemory,       kPeakMemory,     kGoodput,       kReportsDropped,
        kEventsDropped, kDurableBytes,   kForgotten,   kLogDropped,   kRpcs,           kWebhooks,      kRpcSeconds,
        kQueuedJobs,    kOldestWait,     kPreemptions, kNamespaceUse, kNamespaceLimit, kHttpResponses, kHttpRefused,
        kHttpStreams};
    specs->insert(specs->end(), RankMetricSpecs().begin(), RankMetricSpecs().end());
    return specs;
  }();
  return *specs;
}

CoordinatorMetrics::CoordinatorMetrics()
    : registry_(std::make_shared<prometheus::Registry>()), rank_metrics_(*registry_) {
  for (const MetricSpec& spec : CoordinatorMetricSpecs()) {
    if (spec.kind == MetricKind::kCounter) counters_[spec.name] = &CounterFamily(*registry_, spec);
    if (spec.kind == MetricKind::kGauge) gauges_[spec.name] = &GaugeFamily(*registry_, spec);
    if (spec.kind == MetricKind::kHistogram) histograms_[spec.name] = &HistogramFamily(*registry_, spec);
  }
  gauges_[kBuild.name]->Add({{"version", kVersion}}).Set(1);
  tokens_ = &counters_[kTokens.name]->Add({});
  saves_ = &counters_[kSaves.name]->Add({});
  failed_saves_ = &counters_[kFailedSaves.name]->Add({});
  saved_bytes_ = &counters_[kSavedBytes.name]->Add({});
  records_ = &counters_[kRecords.name]->Add({});
  commit_failures_ = &counters_[kCommitFailures.name]->Add({});
  reports_dropped_ = &counters_[kReportsDropped.name]->Add({});
  log_dropped_ = &counters_[kLogDropped.name]->Add({});
  stalled_ = &gauges_[kStalled.name]->Add({});
  counters_[kForgotten.name]->Add({});
  for (DroppedKind kind : {DroppedKind::kDurable, DroppedKind::kReport, DroppedKind::kCluster}) {
    counters_[kEventsDropped.name]->Add({{"kind", DroppedKindName(kind)}});
  }
  for (const char* result : {"delivered", "failed"}) counters_[kWebhooks.name]->Add({{"result", result}});
  gauges_[kDurableBytes.name]->Add({});
  http_streams_ = &gauges_[kHttpStreams.name]->Add({});
  step_seconds_ = &histograms_[kStepSeconds.name]->Add({}, kStepBuckets);
  save_seconds_ = &histograms_[kSaveSeconds.name]->Add({}, kStepBuckets);
  commit_seconds_ = &histograms_[kCommitSeconds.name]->Add({}, kFastBuckets);
  handle_seconds_ = &histograms_[kHandleSeconds.name]->Add({}, kFastBuckets);
  queue_length_ = &gauges_[kQueue.name]->Add({});
}

CoordinatorMetrics::JobSeries& CoordinatorMetrics::SeriesOf(const Job& job) {
  auto [it, is_new] = jobs_.try_emplace(job.id);
  JobSeries& series = it->second;
  if (!is_new) return series;
  series.labels = {{"job_id", job.id.value()}, {"job_name", job.record.job().spec().name()}};
  if (job.head().spec().has_train()) {
    AddStepGauges(job, series);
    series.bubble->Set(PlanPipeline(job.head().spec()).bubble);
  }
  for (GoodputPart part : kGoodputParts) {
    series.goodput.push_back(
        &gauges_[kGoodput.name]->Add(LabelsWith(series.labels, {{"part", GoodputPartName(part)}})));
  }
  return series;
}

// For a command, this is called only when it has reported a step, because it may never report one, and a gauge that
// stays at 0 would look like a hang. The job may have made steps before this coordinator started.
void CoordinatorMetrics::AddStepGauges(const Job& job, JobSeries& series) {
  series.step = &gauges_[kStep.name]->Add(series.labels);
  series.step->Set(static_cast<double>(std::max(job.head().last_step(), job.published.step())));
  series.tokens_per_second = &gauges_[kTokensPerSecond.name]->Add(series.labels);
  series.exposed = &gauges_[kExposed.name]->Add(series.labels);
  series.bubble = &gauges_[kBubble.name]->Add(series.labels);
}

void CoordinatorMetrics::ObserveStep(const JobId& job, const v1::StepReport& step) {
  newest_steps_[job] = step;
  tokens_->Increment(static_cast<double>(step.tokens()));
  step_seconds_->Observe(step.step_s());
}

// Shows the newest steps of the round in the gauges of their jobs. ObserveStep cannot do this, because an effect has
// only the id of its job, and the labels of the gauges also contain the job's name.
void CoordinatorMetrics::ObserveNewestSteps(const Core& core) {
  for (const auto& [id, step] : newest_steps_) {
    auto job = core.state().jobs.find(id);
    if (job == core.state().jobs.end() || IsFinal(job->second.state())) continue;
    JobSeries& series = SeriesOf(job->second);
    if (series.step == nullptr) AddStepGauges(job->second, series);
    series.step->Set(static_cast<double>(step.step()));
    if (step.has_loss() && series.loss == nullptr) series.loss = &gauges_[kLoss.name]->Add(series.labels);
    if (step.has_loss()) series.loss->Set(step.loss());
    if (step.step_s() > 0) series.tokens_per_second->Set(static_cast<double>(step.tokens()) / step.step_s());
    series.exposed->Set(step.exposed_communication_s());
  }
  newest_steps_.clear();
}

void CoordinatorMetrics::ObserveEffect(const Effect& effect) {
  rank_metrics_.ObserveEffect(effect);
  if (const auto* published = std::get_if<JobPublished>(&effect)) {
    const v1::Event& event = *published->event;
    if (event.has_step()) ObserveStep(published->job, event.step());
    if (event.has_state() && !published->repeats_state) {
      counters_[kTransitions.name]->Add({{"state", Lower(StateName(event.state().state()))}}).Increment();
    }
  } else if (const auto* failure = std::get_if<FailureCounted>(&effect)) {
    counters_[kFailures.name]->Add({{"cause", failure->cause}}).Increment();
  } else if (const auto* save = std::get_if<SaveCounted>(&effect)) {
    if (save->failed) {
      failed_saves_->Increment();
    } else {
      saves_->Increment();
      saved_bytes_->Increment(static_cast<double>(save->size_bytes));
      if (save->seconds.has_value()) save_seconds_->Observe(*save->seconds);
    }
  } else if (const auto* dropped = std::get_if<EventsDropped>(&effect)) {
    counters_[kEventsDropped.name]
        ->Add({{"kind", DroppedKindName(dropped->kind)}})
        .Increment(static_cast<double>(dropped->count));
  } else if (std::holds_alternative<JobForgotten>(effect)) {
    counters_[kForgotten.name]->Add({}).Increment();
  } else if (const auto* ended = std::get_if<JobEnded>(&effect)) {
    auto it = jobs_.find(ended->job);
    if (it == jobs_.end()) return;
    if (it->second.step != nullptr) {
      gauges_[kStep.name]->Remove(it->second.step);
      if (it->second.loss != nullptr) gauges_[kLoss.name]->Remove(it->second.loss);
      gauges_[kTokensPerSecond.name]->Remove(it->second.tokens_per_second);
      gauges_[kExposed.name]->Remove(it->second.exposed);
      gauges_[kBubble.name]->Remove(it->second.bubble);
    }
    for (prometheus::Gauge* gauge : it->second.goodput) gauges_[kGoodput.name]->Remove(gauge);
    for (auto& [labels, memory] : it->second.memory) gauges_[labels.metric]->Remove(memory.gauge);
    jobs_.erase(it);
  }
}

void CoordinatorMetrics::ObserveRound(const LoopRound& round, const Core& core, absl::Time now) {
  for (const char* event : round.events) {
    prometheus::Counter*& counter = events_[event];
    if (counter == nullptr) counter = &counters_[kEvents.name]->Add({{"event", event}});
    counter->Increment();
  }
  handle_seconds_->Observe(absl::ToDoubleSeconds(round.handle_time));
  if (round.records > 0) {
    commit_seconds_->Observe(absl::ToDoubleSeconds(round.commit_time));
    records_->Increment(static_cast<double>(round.records));
  }
  queue_length_->Set(static_cast<double>(round.queue_length));
  commit_failures_->Increment(static_cast<double>(round.commit_failures));
  reports_dropped_->Increment(static_cast<double>(round.reports_dropped));
  log_dropped_->Increment(static_cast<double>(LogLinesDropped()) - log_dropped_->Value());
  stalled_->Set(round.stalled ? 1 : 0);
  ObserveNewestSteps(core);
  uint64_t requested = 0;
  {
    absl::MutexLock lock(&mu_);
    requested = scrapes_requested_;
    if (requested == scrapes_answered_) return;
  }
  ObserveTotals(core);
  ObserveGoodput(core, now);
  ObserveMemory(core);
  rank_metrics_.ObserveTotals(core, now, Clock::GetRealClock().TimeNow());
  ObserveQueue(core, now - core.state().away);
  absl::MutexLock lock(&mu_);
  scrapes_answered_ = requested;
  counted_.SignalAll();
}

std::vector<prometheus::MetricFamily> CoordinatorMetrics::Collect() const {
  {
    absl::MutexLock lock(&mu_);
    const uint64_t own_scrape = ++scrapes_requested_;
    counted_.AwaitFor(&mu_, kScrapeWait,
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return scrapes_answered_ >= own_scrape; });
  }
  return registry_->Collect();
}

void CoordinatorMetrics::ObserveTotals(const Core& core) {
  gauges_[kDurableBytes.name]->Add({}).Set(static_cast<double>(core.state().durable_bytes));
  Totals totals = core.CountTotals();
  for (const auto& [state, count] : totals.jobs) {
    gauges_[kJobs.name]->Add({{"state", Lower(StateName(state))}}).Set(static_cast<double>(count));
  }
  gauges_[kHosts.name]->Add({{"state", "attached"}}).Set(static_cast<double>(totals.hosts_attached));
  gauges_[kHosts.name]->Add({{"state", "unreachable"}}).Set(static_cast<double>(totals.hosts_unreachable));
  gauges_[kSlots.name]->Add({{"state", "free"}}).Set(static_cast<double>(totals.slots_free));
  gauges_[kSlots.name]->Add({{"state", "used"}}).Set(static_cast<double>(totals.slots - totals.slots_free));
}

void CoordinatorMetrics::ObserveGoodput(const Core& core, absl::Time now) {
  for (const auto& [id, ledger] : core.CountGoodput(now)) {
    auto job = core.state().jobs.find(id);
    if (job == core.state().jobs.end()) continue;
    JobSeries& series = SeriesOf(job->second);
    for (size_t i = 0; i < series.goodput.size(); ++i) {
      series.goodput[i]->Set(static_cast<double>(PartMs(ledger, kGoodputParts[i])) / 1000);
    }
  }
}

void CoordinatorMetrics::ObserveMemory(const Core& core) {
  ++memory_scrape_;
  for (const auto& [id, job] : core.state().jobs) {
    if (!IsFinal(job.state())) ObserveMemoryOf(job, SeriesOf(job));
  }
}

// Sets the series of running ranks, and removes those of ranks that have ended or that a smaller group no longer has.
// GaugeSet would do the same, but look up every series by its labels, which costs the loop too much time for this many.
void CoordinatorMetrics::ObserveMemoryOf(const Job& job, JobSeries& series) {
  const JobLayout layout = job.ranks.empty() ? JobLayout() : LayoutOf(job.head().spec());
  for (size_t rank = 0; rank < std::min(job.ranks.size(), RankMetrics::kRanksPerJob); ++rank) {
    if (job.ranks[rank].ended()) continue;
    for (const v1::MemoryUse& use : job.ranks[rank].memory) {
      for (auto [metric, bytes] : {std::pair{kMemory.name, use.bytes()}, {kPeakMemory.name, use.peak_bytes()}}) {
        MemoryGauge& memory = series.memory[{metric, rank, use.kind()}];
        if (memory.gauge == nullptr) {
          memory.gauge = &gauges_[metric]->Add(LabelsWith(
              series.labels,
              {{"rank", absl::StrCat(rank)}, {"stage", absl::StrCat(layout.StageOf(rank))}, {"kind", use.kind()}}));
        }
        memory.gauge->Set(static_cast<double>(bytes));
        memory.scrape = memory_scrape_;
      }
    }
  }
  std::erase_if(series.memory, [this](const auto& entry) {
    const bool is_over = entry.second.scrape != memory_scrape_;
    if (is_over) gauges_[entry.first.metric]->Remove(entry.second.gauge);
    return is_over;
  });
}

void CoordinatorMetrics::ObserveQueue(const Core& core, absl::Time now) {
  std::map<std::string, prometheus::Counter*> preemptions;
  queue_gauges_.Begin();
  for (const PoolTotals& totals : CountPools(core.state(), now)) {
    const prometheus::Labels pool = {{"namespace", totals.pool}};
    const auto set = [&](const MetricSpec& metric, const prometheus::Labels& labels, double value) {
      queue_gauges_.Set(*gauges_[metric.name], labels, value);
    };
    const auto set_resource = [&](const MetricSpec& metric, const char* resource, uint64_t value) {
      set(metric, LabelsWith(pool, {{"resource", resource}}), static_cast<double>(value));
    };
    set(kQueuedJobs, pool, static_cast<double>(totals.queued));
    set(kOldestWait, pool, absl::ToDoubleSeconds(totals.oldest_wait));
    set_resource(kNamespaceUse, "slots", totals.use.slots);
    set_resource(kNamespaceUse, "gpus", totals.use.gpus);
    set_resource(kNamespaceUse, "running", totals.use.running);
    const NamespaceRules& rules = RulesOf(core.state().options.queue, totals.pool);
    for (const auto& [resource, limit] :
         {std::pair{"slots", rules.max_slots}, std::pair{"gpus", rules.max_gpus},
          std::pair{"running", rules.max_running}, std::pair{"queued", rules.max_queued}}) {
      if (limit.has_value()) set_resource(kNamespaceLimit, resource, *limit);
    }
    prometheus::Counter& preempted = counters_[kPreemptions.name]->Add(pool);
    preempted.Increment(static_cast<double>(totals.preemptions) - preempted.Value());
    preemptions[totals.pool] = &preempted;
  }
  queue_gauges_.End();
  for (const auto& [pool, counter] : preemptions_) {
    if (!preemptions.contains(pool)) counters_[kPreemptions.name]->Remove(counter);
  }
  preemptions_ = std::move(preemptions);
}

void CoordinatorMetrics::CountRpc(const char* method, absl::StatusCode code) {
  counters_.at(kRpcs.name)->Add({{"method", method}, {"code", absl::StatusCodeToString(code)}}).Increment();
}

void CoordinatorMetrics::ObserveCall(const char* method, absl::Duration duration) {
  histograms_.at(kRpcSeconds.name)->Add({{"method", method}}, kFastBuckets).Observe(absl::ToDoubleSeconds(duration));
}

HttpObserver CoordinatorMetrics::MakeHttpObserver() {
  return {.responded =
              [this](int code) {
                counters_.at(kHttpResponses.name)->Add({{"code", absl::StrCat(code)}}).Increment();
              },
          .refused =
              [this](const char* reason, const std::string& peer) {
                counters_.at(kHttpRefused.name)->Add({{"reason", reason}}).Increment();
                LogRefused(reason, peer);
              },
          .streams = [this](size_t open) { http_streams_->Set(static_cast<double>(open)); }};
}

// Anyone who reaches the port can cause these lines, so there is at most one for each reason in each period.
void CoordinatorMetrics::LogRefused(const char* reason, const std::string& peer) {
  absl::MutexLock lock(&refused_mu_);
  const auto suppressed =
      refused_.try_emplace(reason, kRefusedLogPeriod).first->second.Allow(Clock::GetSteadyClock().TimeNow());
  if (!suppressed.has_value()) return;
  spdlog::warn("HTTP: refused {} ({}); {} more since the last such line; {} counts all of them",
               peer.empty() ? "a client" : peer, reason, *suppressed, kHttpRefused.name);
}

void CoordinatorMetrics::CountWebhook(bool delivered) {
  counters_.at(kWebhooks.name)->Add({{"result", delivered ? "delivered" : "failed"}}).Increment();
}

}  // namespace trainyard
