// The part of Turn that publishes: events and notices of jobs and of the cluster, and the limits on what is stored.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"

namespace trainyard {
namespace {

// Sequence numbers are reserved in blocks: one write for this many events. No number is used twice, even after a
// restart.
constexpr uint64_t kSequenceBlock = 4'096;
// When the events of all jobs exceed their limit, they are reduced to this size, so that not every later event
// causes more events to be dropped.
constexpr size_t kEventBytesGoal = limits::kDurableEventBytes / 16 * 15;

// A durable event is bounded: texts from daemons and users are cut.
void CutTexts(v1::Event& event) {
  const auto cut = [](std::string* text) {
    if (text->size() > limits::kDurableTextBytes) *text = CutText(*text, limits::kDurableTextBytes);
  };
  if (event.has_notice()) cut(event.mutable_notice()->mutable_text());
  if (event.has_state()) cut(event.mutable_state()->mutable_reason());
}

// An error of a job is logged as a warning; the errors in the log are those of the coordinator itself.
WriteLog::Level ToLogLevel(NoticeLevel level) {
  return level == NoticeLevel::kInfo ? WriteLog::Level::kInfo : WriteLog::Level::kWarning;
}

}  // namespace

void Turn::ReserveSequences(Job& job) {
  if (job.last_sequence <= job.record.sequence_limit()) return;
  job.record.set_sequence_limit(job.last_sequence + kSequenceBlock);
  Save(job);
}

uint64_t Turn::NextSequence(Job& job) {
  ++job.last_sequence;
  ReserveSequences(job);
  return job.last_sequence;
}

void Turn::Publish(Job& job, v1::Event event) {
  CutTexts(event);
  event.set_sequence(NextSequence(job));
  event.set_time_unix_ms(absl::ToUnixMillis(wall));
  event.set_generation(job.head().generation());
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  changes_[job.id].events[shared->sequence()] = shared;
  job.record.set_event_sequence(shared->sequence());
  Save(job);
  size_t bytes = job.history.durable_bytes();
  std::vector<uint64_t> dropped = job.history.AddDurable(shared);
  state.durable_bytes += job.history.durable_bytes() - bytes;  // the difference may wrap around; the sum is right
  DropEvents(job, dropped);
  LimitEvents(job);
  jobs_with_events_.insert(job.id);
  Emit(JobPublished{job.id, std::move(shared)});
}

void Turn::PublishReport(Job& job, v1::Event event, bool is_new) {
  event.set_sequence(NextSequence(job));
  event.set_time_unix_ms(absl::ToUnixMillis(wall));
  event.set_generation(job.head().generation());
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  size_t dropped = job.history.AddReport(shared);
  if (dropped > 0) Emit(EventsDropped{DroppedKind::kReport, dropped});
  jobs_with_events_.insert(job.id);
  const bool repeats_state = shared->has_state();  // a change of the state is a durable event and not a report
  if (is_new) Emit(JobPublished{job.id, std::move(shared), repeats_state});
}

void Turn::DropEvents(Job& job, const std::vector<uint64_t>& sequences) {
  if (sequences.empty()) return;
  JobChanges& changes = changes_[job.id];
  for (uint64_t sequence : sequences) {
    // An event of this turn was not written yet.
    if (changes.events.erase(sequence) == 0) changes.dropped_events.push_back(sequence);
  }
  CountDeleted(job, sequences);
  Save(job);
  Emit(EventsDropped{DroppedKind::kDurable, sequences.size()});
}

void Turn::ShrinkEvents(Job& job, size_t goal, size_t min_events, History::Dropped what) {
  if (state.durable_bytes <= goal) return;
  const size_t before = job.history.durable_bytes();
  std::vector<uint64_t> dropped = job.history.Shrink(state.durable_bytes - goal, min_events, what);
  state.durable_bytes -= before - job.history.durable_bytes();
  DropEvents(job, dropped);
}

// The events of all jobs share a limit. Repetitive events of finished jobs are dropped first, then the other events of
// finished jobs except their newest, oldest jobs first; if that is not enough, this job's own events are dropped.
void Turn::LimitEvents(Job& job) {
  if (state.durable_bytes <= limits::kDurableEventBytes) return;
  for (auto what : {History::Dropped::kRepetitive, History::Dropped::kAny}) {
    for (const JobId& id : state.finished) {
      ShrinkEvents(state.jobs.at(id), kEventBytesGoal, limits::kDurableEventsOfFinished, what);
    }
  }
  ShrinkEvents(job, limits::kDurableEventBytes, /*min_events=*/1, History::Dropped::kAny);
}

void Turn::StoreReports(Job& job) {
  if (job.history.reports().empty() || job.history.last_sequence() <= job.stored_sequence) return;
  JobChanges& changes = changes_[job.id];
  uint64_t first_part = 0;
  if (job.reported_step > limits::kDurableReports) {
    first_part = (job.reported_step - limits::kDurableReports) / kStepsPerReportPart;
  }
  const auto& reports = job.history.reports();
  for (auto report = reports.rbegin(); report != reports.rend() && (*report)->sequence() > job.stored_sequence;
       ++report) {
    std::optional<uint64_t> part = ReportPartOf(**report);
    if (!part.has_value() || *part < first_part) continue;
    changes.report_parts.insert(*part);
    job.stored_parts.insert(*part);
  }
  job.stored_sequence = reports.back()->sequence();
  while (!job.stored_parts.empty() && *job.stored_parts.begin() < first_part) {
    changes.dropped_report_parts.push_back(*job.stored_parts.begin());
    job.stored_parts.erase(job.stored_parts.begin());
  }
}

void Turn::ForgetReports(Job& job) {
  job.history.DropReports();
  JobChanges& changes = changes_[job.id];
  changes.dropped_report_parts.insert(changes.dropped_report_parts.end(), job.stored_parts.begin(),
                                      job.stored_parts.end());
  job.stored_parts.clear();
}

void Turn::Notice(Job& job, NoticeLevel level, std::string text) {
  v1::Event event;
  event.mutable_notice()->set_level(LevelName(level));
  event.mutable_notice()->set_text(std::move(text));
  Publish(job, std::move(event));
}

void Turn::Decide(Job& job, DecisionRule rule, NoticeLevel level, std::string text) {
  Emit(WriteLog{ToLogLevel(level), absl::StrCat("job ", job.id.value(), ": ", text)});
  v1::Event event;
  event.mutable_notice()->set_level(LevelName(level));
  event.mutable_notice()->set_text(std::move(text));
  event.mutable_notice()->set_rule(RuleName(rule));
  Publish(job, std::move(event));
}

void Turn::DecideCluster(const HostName& host, DecisionRule rule, NoticeLevel level, std::string text) {
  Emit(WriteLog{ToLogLevel(level), text});
  v1::Event event;
  event.set_host(host.value());
  event.mutable_notice()->set_level(LevelName(level));
  event.mutable_notice()->set_text(std::move(text));
  event.mutable_notice()->set_rule(RuleName(rule));
  PublishClusterEvent(std::move(event));
}

void Turn::PublishClusterEvent(v1::Event event) {
  CutTexts(event);
  event.set_sequence(++state.cluster_sequence);
  event.set_time_unix_ms(absl::ToUnixMillis(wall));
  if (auto host = state.hosts.find(HostName(event.host())); host != state.hosts.end()) {
    // The version is at least the time, so that neither an older copy of the store nor a new host of this name repeats
    // a version.
    host->second.record.set_version(std::max(host->second.version() + 1, static_cast<uint64_t>(event.time_unix_ms())));
    Save(host->second);
  }
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  cluster_records_.push_back({EventKey(JobId(), shared->sequence()), shared->SerializeAsString()});
  for (uint64_t dropped : state.cluster.AddDurable(std::move(shared))) {
    cluster_records_.push_back({EventKey(JobId(), dropped), std::nullopt});
    Emit(EventsDropped{DroppedKind::kCluster, 1});
  }
}

void Turn::SetReason(Job& job, std::string reason) {
  job.head().set_reason(std::move(reason));
  PublishState(job, /*durable=*/job.history.empty());
}

void Turn::PublishState(Job& job, bool durable) {
  v1::Event event;
  event.mutable_state()->set_state(job.state());
  event.mutable_state()->set_reason(job.head().reason());
  event.mutable_state()->set_restarts(job.head().restarts());
  if (!durable) return PublishReport(job, std::move(event), /*is_new=*/true);
  v1::Event cluster_event = event;
  cluster_event.set_job_id(job.id.value());
  cluster_event.set_generation(job.head().generation());
  PublishClusterEvent(std::move(cluster_event));
  Publish(job, std::move(event));
}

}  // namespace trainyard
