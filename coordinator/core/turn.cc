#include "coordinator/core/turn.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/records.h"
#include "coordinator/handlers/abandon_job.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/cancel_job.h"
#include "coordinator/handlers/log_readers.h"
#include "coordinator/handlers/place_jobs.h"
#include "coordinator/handlers/prune_finished.h"
#include "coordinator/handlers/webhooks.h"

namespace trainyard {
namespace {

// The largest number of events in a batch. A watcher requests the next batch only after it has written one, so a slow
// watcher never has more events in memory.
constexpr size_t kWatchBatch = 256;
// Only the newest finished jobs keep their steps and evaluations, because a client may still be reading them.
constexpr size_t kFinishedWithReports = 8;

void CountDown(std::map<std::string, uint64_t>& counts, const std::string& name) {
  const auto found = counts.find(name);
  if (found != counts.end() && --found->second == 0) counts.erase(found);
}

}  // namespace

void EnterQueue(State& state, Job& job, absl::Time now) {
  if (!state.queue.insert(job.record.submit_index()).second) return;
  job.waiting_since = now;
  if (job.record.admitted()) state.queued_again.insert(job.record.submit_index());
  ++state.queued[job.namespace_name()];
}

void LeaveQueue(State& state, Job& job) {
  const uint64_t index = job.record.submit_index();
  state.overdue.erase(index);
  state.preempting.erase(index);
  state.queued_again.erase(index);
  job.record.clear_preempting();
  job.head().clear_queued_unix_ms();
  if (state.queue.erase(index) > 0) CountDown(state.queued, job.namespace_name());
}

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

void Turn::Move(Job& job, LifecycleEvent event, std::string reason) {
  v1::JobState from = job.state();
  std::optional<v1::JobState> to = NextState(from, event);
  if (!to.has_value()) {
    // This is a bug. The lifecycle table is the authority, so the job keeps its state and the log names the attempt.
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
  if (!IsFinal(*to)) return;
  Emit(JobEnded{job.id});
  RequestWebhook(*this, job);
}

void Turn::Enqueue(Job& job) {
  EnterQueue(state, job, now);
  job.head().set_queued_unix_ms(absl::ToUnixMillis(wall));
}

void Turn::EnterState(Job& job, v1::JobState from) {
  v1::JobState to = job.state();
  if (to != v1::JOB_STATE_STOPPING) job.record.clear_ending();
  // A job that waited for slots (also for a restart) no longer waits in its next state.
  if (from == v1::JOB_STATE_QUEUED || from == v1::JOB_STATE_RECOVERING) {
    LeaveQueue(state, job);
  }
  if (to == v1::JOB_STATE_PAUSED || IsFinal(to)) {
    job.record.clear_admitted();
    job.head().clear_preempted_by();
  }
  if (HasTrainers(to)) {
    job.record.set_admitted(true);
    state.active.insert(job.id);
  } else {
    state.active.erase(job.id);
    job.current.nothing_desired = true;
    job.current.unconfirmed.clear();
    job.head().set_unreachable(false);
  }
  if (to == v1::JOB_STATE_PAUSED) {
    ForgetCancelWhenSaved(*this, job, "paused");
    PushAll(job);
    ScheduleAll();  // slots or a quota may have been kept for the job
  }
  if (to == v1::JOB_STATE_QUEUED) {
    Enqueue(job);
    Schedule(job);
  }
  if (from == v1::JOB_STATE_RUNNING) StoreReports(job);
  if (to == v1::JOB_STATE_RUNNING && job.head().started_unix_ms() == 0) {
    job.head().set_started_unix_ms(absl::ToUnixMillis(wall));
  }
  if (!IsFinal(to)) return;

  job.head().set_finished_unix_ms(absl::ToUnixMillis(wall));
  CountDown(state.unfinished, job.namespace_name());
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
  SendToWatchers();  // before their jobs may be removed from the history
  PruneFinished(*this);
  SendDesired();
  WriteRecords();
  return std::move(output_);
}

void Turn::SendToWatchers() {
  for (const JobId& id : jobs_with_events_) {
    auto it = state.jobs.find(id);
    if (it == state.jobs.end()) continue;
    Job& job = it->second;
    for (auto waiter = job.waiting_watchers.begin(); waiter != job.waiting_watchers.end();) {
      std::optional<WatchBatch> batch = MakeWatchBatch(job, waiter->first, waiter->second);
      if (!batch.has_value()) {
        ++waiter;
        continue;
      }
      Emit(*std::move(batch));
      waiter = job.waiting_watchers.erase(waiter);
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

// If one commit cannot hold all records of a turn, they are written in this order, so that it does no harm if the last
// ones are lost: ranks and events count only if the record of their job, which is written after them, includes their
// generation or sequence, and what is acknowledged to a host is written after the records of what the host reported.
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
  ++last_group_;
  for (size_t i = first; i < output_.records.size(); ++i) output_.records[i].group = last_group_;
}

}  // namespace trainyard
