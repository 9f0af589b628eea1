#include "coordinator/core/turn.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/records.h"
#include "coordinator/handlers/abandon_job.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/log_readers.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/handlers/prune_finished.h"

namespace trainyard {
namespace {

// A watcher requests the next batch after this one, so a slow reader never has more than this in memory.
constexpr size_t kWatchBatch = 256;
// Sequences are reserved in blocks: one write for this many events, and no sequence is used twice over a restart.
constexpr uint64_t kSequenceBlock = 4'096;
// Only the newest finished jobs keep their steps and evaluations, because a client may still be reading them.
constexpr size_t kFinishedWithReports = 8;
// When the events of all jobs exceed their limit, more than needed are dropped, so that not every new event drops some.
constexpr size_t kEventBytesGoal = limits::kDurableEventBytes / 16 * 15;

// A durable event is bounded: texts from daemons and users are cut.
void CutTexts(v1::Event& event) {
  const auto cut = [](std::string* text) {
    if (text->size() > limits::kDurableTextBytes) *text = CutText(*text, limits::kDurableTextBytes);
  };
  if (event.has_notice()) cut(event.mutable_notice()->mutable_text());
  if (event.has_state()) cut(event.mutable_state()->mutable_reason());
}

// An error of a job is a warning for the operator: an error in the log is one of the coordinator itself.
WriteLog::Level ToLogLevel(NoticeLevel level) {
  return level == NoticeLevel::kInfo ? WriteLog::Level::kInfo : WriteLog::Level::kWarning;
}

}  // namespace

std::optional<WatchBatch> MakeWatchBatch(const Job& job, WatchId watch, WatchPosition& position) {
  WatchBatch batch{.watch = watch, .events = {}, .position = {}, .last = false};
  bool at_end = job.history.Next(position, kWatchBatch, batch.events);
  batch.position = position;
  batch.last = at_end && IsFinal(job.state());
  if (batch.events.empty() && !batch.last) return std::nullopt;
  return batch;
}

void Turn::SaveRank(const Job& job, uint32_t rank) { changes_[job.id].rank_parts.insert(rank / kRanksPerPart); }

void Turn::PushAll(const Job& job) {
  for (const auto& [host, ranks] : job.ranks_on) Push(host);
}

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
  with_news_.insert(job.id);
  Emit(JobPublished{job.id, std::move(shared)});
}

void Turn::PublishReport(Job& job, v1::Event event, bool is_new) {
  event.set_sequence(NextSequence(job));
  event.set_time_unix_ms(absl::ToUnixMillis(wall));
  event.set_generation(job.head().generation());
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  size_t dropped = job.history.AddReport(shared);
  if (dropped > 0) Emit(EventsDropped{"report", dropped});
  with_news_.insert(job.id);
  if (is_new) Emit(JobPublished{job.id, std::move(shared)});
}

void Turn::DropEvents(Job& job, const std::vector<uint64_t>& sequences) {
  if (sequences.empty()) return;
  JobChanges& changes = changes_[job.id];
  for (uint64_t sequence : sequences) {
    // An event of this turn was not written yet.
    if (changes.events.erase(sequence) == 0) changes.dropped_events.push_back(sequence);
  }
  job.record.set_events_dropped(job.record.events_dropped() + sequences.size());
  Save(job);
  Emit(EventsDropped{"durable", sequences.size()});
}

void Turn::ShrinkEvents(Job& job, size_t goal, size_t least, History::Dropped what) {
  if (state.durable_bytes <= goal) return;
  const size_t before = job.history.durable_bytes();
  std::vector<uint64_t> dropped = job.history.Shrink(state.durable_bytes - goal, least, what);
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
  ShrinkEvents(job, limits::kDurableEventBytes, /*least=*/1, History::Dropped::kAny);
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
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  cluster_records_.push_back({EventKey(JobId(), shared->sequence()), shared->SerializeAsString()});
  for (uint64_t gone : state.cluster.AddDurable(std::move(shared))) {
    cluster_records_.push_back({EventKey(JobId(), gone), std::nullopt});
    Emit(EventsDropped{"cluster", 1});
  }
}

void Turn::Move(Job& job, LifecycleEvent event, std::string reason) {
  v1::JobState from = job.state();
  std::optional<v1::JobState> to = NextState(from, event);
  if (!to.has_value()) {
    // A bug: the table is the authority, so the job keeps its state and the log names the attempt.
    Emit(WriteLog{WriteLog::Level::kError, absl::StrCat("job ", job.id.value(), ": ", EventName(event), " in state ",
                                                        StateName(from), " is not in the lifecycle's table")});
    return;
  }
  AccountGoodput(*this, job);
  job.head().set_state(*to);
  job.head().set_reason(std::move(reason));
  PublishState(job, /*durable=*/true);
  EnterState(job, from);
  Save(job);
  Info(absl::StrCat("job ", job.id.value(), ": ", StateName(from), " -> ", StateName(*to), ": ", job.head().reason()));
  if (IsFinal(*to)) Emit(JobEnded{job.id});
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
  v1::Event of_cluster = event;
  of_cluster.set_job_id(job.id.value());
  of_cluster.set_generation(job.head().generation());
  PublishClusterEvent(std::move(of_cluster));
  Publish(job, std::move(event));
}

void Turn::EnterState(Job& job, v1::JobState from) {
  v1::JobState to = job.state();
  if (to != v1::JOB_STATE_STOPPING) job.record.clear_ending();
  // In any next state a job that waited (also for a restart) no longer waits.
  if (from == v1::JOB_STATE_QUEUED || from == v1::JOB_STATE_RECOVERING) {
    state.queue.erase(job.record.submit_index());
    state.overdue.erase(job.record.submit_index());
  }
  if (HasTrainers(to)) {
    state.active.insert(job.id);
  } else {
    state.active.erase(job.id);
    job.current.nothing_desired = true;
    job.current.unconfirmed.clear();
    job.head().set_unreachable(false);
  }
  if (to == v1::JOB_STATE_PAUSED) PushAll(job);
  if (to == v1::JOB_STATE_QUEUED) {
    state.queue.insert(job.record.submit_index());
    job.waiting_since = now;
    Schedule(job);
  }
  if (from == v1::JOB_STATE_RUNNING) StoreReports(job);
  if (to == v1::JOB_STATE_RUNNING && job.head().started_unix_ms() == 0) {
    job.head().set_started_unix_ms(absl::ToUnixMillis(wall));
  }
  if (!IsFinal(to)) return;

  job.head().set_finished_unix_ms(absl::ToUnixMillis(wall));
  for (const auto& [name, ranks] : job.ranks_on) {
    auto host = state.hosts.find(name);
    if (host != state.hosts.end()) host->second.jobs.erase(job.id);
  }
  PushAll(job);
  SavePublished(job);
  EndPathQueries(*this, job);
  EndLogsOfJob(*this, job);
  state.finished.push_back(job.id);
  if (state.finished.size() > kFinishedWithReports) {
    ForgetReports(state.jobs.at(state.finished[state.finished.size() - 1 - kFinishedWithReports]));
  }
  ScheduleAll();
}

Output Turn::Finish() {
  // Each round moves jobs forward in their lifecycle, so the rounds end; the bound guards against a bug.
  for (int round = 0; round < 64 && (!touched_.empty() || schedule_all_ || !to_schedule_.empty()); ++round) {
    std::set<JobId> touched = std::exchange(touched_, {});
    for (const JobId& id : touched) {
      auto it = state.jobs.find(id);
      if (it != state.jobs.end()) AdvanceJob(*this, it->second);
    }
    std::set<uint64_t> to_schedule = std::exchange(to_schedule_, {});
    if (std::exchange(schedule_all_, false)) to_schedule = state.queue;
    if (!to_schedule.empty()) PlaceJobs(*this, to_schedule);
  }
  PruneFinished(*this);
  FeedWatchers();
  SendDesired();
  WriteRecords();
  return std::move(output_);
}

void Turn::FeedWatchers() {
  for (const JobId& id : with_news_) {
    auto it = state.jobs.find(id);
    if (it == state.jobs.end()) continue;
    Job& job = it->second;
    for (auto waiter = job.waiting.begin(); waiter != job.waiting.end();) {
      std::optional<WatchBatch> batch = MakeWatchBatch(job, waiter->first, waiter->second);
      if (!batch.has_value()) {
        ++waiter;
        continue;
      }
      Emit(*std::move(batch));
      waiter = job.waiting.erase(waiter);
    }
  }
}

void Turn::SendDesired() {
  for (const HostName& name : hosts_to_push_) {
    auto it = state.hosts.find(name);
    if (it == state.hosts.end() || !it->second.attached()) continue;
    Host& host = it->second;
    host.record.set_revision(host.record.revision() + 1);
    Emit(SendToHost{host.session, MakeDesired(state, host)});
    MarkRemoved(state, host);
  }
}

// If one commit cannot hold all records of a turn, they are written in this order, so that a lost end changes nothing:
// ranks (by generation) and events (by sequence) count only with the job's record behind them, and the acknowledgement
// to a host is behind the records of what the host reported.
void Turn::WriteRecords() {
  for (const auto& [id, changes] : changes_) {
    if (state.jobs.contains(id)) WriteJob(id);
  }
  for (const HostName& name : hosts_to_save_) {
    auto it = state.hosts.find(name);
    if (it != state.hosts.end()) output_.records.push_back(MakeHostRecord(it->second));
  }
  std::move(cluster_records_.begin(), cluster_records_.end(), std::back_inserter(output_.records));
  for (std::string& key : deletes_) output_.records.push_back({std::move(key), std::nullopt});
}

void Turn::WriteJob(const JobId& id) {
  Job& job = state.jobs.at(id);
  const JobChanges& changes = changes_.at(id);
  size_t first = output_.records.size();
  for (uint32_t part : changes.rank_parts) output_.records.push_back(RankPartRecord(job, part));
  for (uint64_t part : changes.report_parts) output_.records.push_back(MakeReportPart(job, part));
  for (const auto& [sequence, event] : changes.events) {
    output_.records.push_back({EventKey(id, sequence), event->SerializeAsString()});
  }
  for (uint64_t part : changes.dropped_report_parts) {
    output_.records.push_back({ReportPartKey(id, part), std::nullopt});
  }
  for (uint64_t sequence : changes.dropped_events) output_.records.push_back({EventKey(id, sequence), std::nullopt});
  if (changes.published) {
    job.published_changed = false;
    output_.records.push_back(MakePublishedRecord(job));
  }
  if (changes.record) output_.records.push_back(MakeJobRecord(job));
  ++groups_;
  for (size_t i = first; i < output_.records.size(); ++i) output_.records[i].group = groups_;
}

}  // namespace trainyard
