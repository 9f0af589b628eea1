#include "coordinator/http/rank_metrics.h"

#include <algorithm>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/notice.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

constexpr MetricSpec kCompute = {"trainyard_rank_compute_seconds", MetricKind::kGauge,
                                 "Computing time of a rank per step, mean of about 30 s. The steps of all ranks take "
                                 "equally long, because they wait for the slowest one.",
                                 "job_id, job_name, rank, stage"};
constexpr MetricSpec kWait = {"trainyard_rank_wait_share", MetricKind::kGauge,
                              "Share of waiting for other ranks in the time of a rank, mean of about 30 s.",
                              "job_id, job_name, rank, stage"};
constexpr MetricSpec kOmitted = {"trainyard_rank_series_omitted", MetricKind::kGauge,
                                 "Ranks of running jobs without series of their own, because of the limit."};
constexpr MetricSpec kPhases = {"trainyard_job_ranks", MetricKind::kGauge,
                                "Ranks of an unfinished job by the phase that they reported last: starting, joining, "
                                "tokenize, load, ready, first_step, train, evaluate, save, leaving, ended; other: a "
                                "phase of another version.",
                                "job_id, job_name, phase"};
constexpr MetricSpec kStragglers = {"trainyard_job_stragglers", MetricKind::kGauge,
                                    "Ranks of an unfinished job that are much slower than the others of their stage.",
                                    "job_id, job_name"};
constexpr MetricSpec kSaved = {"trainyard_job_saved_timestamp_seconds", MetricKind::kGauge,
                               "Unix time of the newest checkpoint of an unfinished job, or of its first start if it "
                               "has none; a failure loses the steps since then. Only of jobs that save before their "
                               "end.",
                               "job_id, job_name"};
constexpr MetricSpec kContact = {"trainyard_host_contact_timestamp_seconds", MetricKind::kGauge,
                                 "Unix time of the newest message from a host that has attached to this coordinator.",
                                 "host"};
constexpr MetricSpec kStateSeconds = {
    "trainyard_job_state_seconds", MetricKind::kHistogram,
    "Time that jobs were in a state before they left it: queued (for slots), placed (trainers start), starting (ranks "
    "load and connect), recovering (a failed group ends, and the next one is placed), stopping.",
    "state"};
constexpr MetricSpec kRecoverySeconds = {"trainyard_job_recovery_seconds", MetricKind::kHistogram,
                                         "Time from the detection of a failure until all ranks of the next group run."};
constexpr MetricSpec kDecisions = {"trainyard_decisions_total", MetricKind::kCounter,
                                   "Decisions of the coordinator about jobs, by the rule that `trainctl why` names.",
                                   "rule"};

const Buckets kRecoveryBuckets = {0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};
constexpr v1::JobState kMeasuredStates[] = {v1::JOB_STATE_QUEUED, v1::JOB_STATE_PLACED, v1::JOB_STATE_STARTING,
                                            v1::JOB_STATE_RECOVERING, v1::JOB_STATE_STOPPING};

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// Returns the time of the job's newest checkpoint. If there is none, returns the time of the job's start, or nothing if
// the job has not started or saves nothing before its end.
absl::optional<double> SavedSeconds(const v1::Job& job) {
  int64_t saved_ms = 0;
  for (const v1::CheckpointInfo& checkpoint : job.checkpoints()) {
    saved_ms = std::max(saved_ms, checkpoint.recorded_unix_ms());
  }
  if (saved_ms == 0 && job.spec().checkpoint().every_steps() > 0) saved_ms = job.started_unix_ms();
  if (saved_ms == 0) return absl::nullopt;
  return static_cast<double>(saved_ms) / 1000;
}

}  // namespace

const std::vector<MetricSpec>& RankMetricSpecs() {
  static const auto* specs = new std::vector<MetricSpec>{
      kCompute, kWait, kOmitted, kPhases, kStragglers, kSaved, kContact, kStateSeconds, kRecoverySeconds, kDecisions};
  return *specs;
}

RankMetrics::RankMetrics(prometheus::Registry& registry) {
  for (const MetricSpec& spec : RankMetricSpecs()) {
    if (spec.kind == MetricKind::kGauge) gauges_[spec.name] = &GaugeFamily(registry, spec);
  }
  auto& decisions = CounterFamily(registry, kDecisions);
  for (int rule = 1; rule <= static_cast<int>(kLastDecisionRule); ++rule) {
    const char* name = RuleName(static_cast<DecisionRule>(rule));
    decisions_[name] = &decisions.Add({{"rule", name}});
  }
  auto& states = HistogramFamily(registry, kStateSeconds);
  for (v1::JobState state : kMeasuredStates) {
    state_seconds_[state] = &states.Add({{"state", absl::AsciiStrToLower(StateName(state))}}, kRecoveryBuckets);
  }
  recovery_seconds_ = &HistogramFamily(registry, kRecoverySeconds).Add({}, kRecoveryBuckets);
}

void RankMetrics::ObserveEffect(const Effect& effect) {
  if (const auto* published = std::get_if<JobPublished>(&effect)) {
    const v1::Event& event = *published->event;
    if (event.has_state() && !published->repeats_state) ObserveState(published->job, event);
    if (!event.has_notice()) return;
    auto decision = decisions_.find(event.notice().rule());
    if (decision != decisions_.end()) decision->second->Increment();
  }
}

void RankMetrics::ObserveState(const JobId& job, const v1::Event& event) {
  const absl::Time at = absl::FromUnixMillis(event.time_unix_ms());
  const v1::JobState state = event.state().state();
  JobTimes& times = times_[job];
  auto measured = state_seconds_.find(times.state);
  // The wall clock may have been set back.
  if (measured != state_seconds_.end() && at >= times.since && state != times.state) {
    measured->second->Observe(absl::ToDoubleSeconds(at - times.since));
  }
  if (state != times.state) times.since = at;
  times.state = state;
  if (state == v1::JOB_STATE_RECOVERING) times.failed_at = std::min(times.failed_at, at);
  if (state == v1::JOB_STATE_RUNNING && times.failed_at <= at) {
    recovery_seconds_->Observe(absl::ToDoubleSeconds(at - times.failed_at));
  }
  if (state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_PAUSED) times.failed_at = absl::InfiniteFuture();
  if (IsFinal(state)) times_.erase(job);
}

void RankMetrics::ObserveTotals(const Core& core, absl::Time now, absl::Time wall) {
  current_.Begin();
  size_t omitted = 0;
  size_t jobs_with_ranks = 0;
  for (const auto& [id, job] : core.state().jobs) jobs_with_ranks += IsFinal(job.state()) || job.ranks.empty() ? 0 : 1;
  const size_t share = kRankSeries / std::max<size_t>(jobs_with_ranks, 1);
  for (const auto& [id, job] : core.state().jobs) {
    if (!IsFinal(job.state())) omitted += ObserveJob(job, std::clamp(share, kRanksPerJobMin, kRanksPerJob));
  }
  for (const auto& [name, host] : core.state().hosts) {
    if (host.attached_at == absl::InfinitePast()) continue;
    const absl::Duration age = now - core.state().away - host.last_contact;
    current_.Set(*gauges_[kContact.name], {{"host", name.value()}},
                 UnixSeconds(wall - std::max(age, absl::Duration())));
  }
  current_.Set(*gauges_[kOmitted.name], {}, static_cast<double>(omitted));
  current_.End();
}

size_t RankMetrics::ObserveJob(const Job& job, size_t ranks_shown) {
  const prometheus::Labels labels = {{"job_id", job.id.value()}, {"job_name", job.head().spec().name()}};
  size_t stragglers = 0;
  std::map<std::string, size_t> phases;
  for (const Rank& rank : job.ranks) {
    stragglers += rank.straggler ? 1 : 0;
    // A trainer of another version may report a phase that this coordinator does not know.
    if (!rank.ended()) phases[rank.phase.known().has_value() ? rank.phase.name() : "other"]++;
  }
  for (const auto& [phase, count] : phases) {
    current_.Set(*gauges_[kPhases.name], LabelsWith(labels, {{"phase", phase}}), static_cast<double>(count));
  }
  if (!job.ranks.empty()) current_.Set(*gauges_[kStragglers.name], labels, static_cast<double>(stragglers));
  if (absl::optional<double> saved = SavedSeconds(job.head())) current_.Set(*gauges_[kSaved.name], labels, *saved);
  return ObserveRanks(job, labels, ranks_shown);
}

size_t RankMetrics::ObserveRanks(const Job& job, const prometheus::Labels& labels, size_t ranks_shown) {
  if (job.ranks.empty()) return 0;
  size_t omitted = 0;
  const JobLayout layout = LayoutOf(job.head().spec());
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    const Rank& rank = job.ranks[i];
    const double compute_s = rank.compute_window.StepSeconds();
    if (compute_s <= 0) continue;
    if (i >= ranks_shown) {
      ++omitted;
      continue;
    }
    const prometheus::Labels of_rank =
        LabelsWith(labels, {{"rank", absl::StrCat(i)}, {"stage", absl::StrCat(layout.StageOf(i))}});
    current_.Set(*gauges_[kCompute.name], of_rank, compute_s);
    current_.Set(*gauges_[kWait.name], of_rank, rank.compute_window.WaitShare());
  }
  return omitted;
}

}  // namespace trainyard
