#include "coordinator/core/turn.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/records.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

// A watcher asks again after so many, so that it never holds more than this for a slow reader.
constexpr size_t kWatchBatch = 256;
// Sequences are reserved in blocks: one write for so many events, and none is ever told twice over a restart.
constexpr uint64_t kSequenceBlock = 4'096;
// Finished jobs keep their last events only, but the newest of them keep all: somebody may still be reading.
constexpr size_t kFinishedWithHistory = 8;
constexpr size_t kEventsOfFinished = 16;

}  // namespace

std::optional<WatchBatch> MakeWatchBatch(const Job& job, WatchId watch, uint64_t after_sequence) {
  bool is_final = IsFinal(job.state());
  auto it = std::upper_bound(job.history.begin(), job.history.end(), after_sequence,
                             [](uint64_t sequence, const EventPtr& event) { return sequence < event->sequence(); });
  if (it == job.history.end() && !is_final) return std::nullopt;
  WatchBatch batch{.watch = watch, .events = {}, .last = false};
  for (; it != job.history.end() && batch.events.size() < kWatchBatch; ++it) batch.events.push_back(*it);
  batch.last = is_final && it == job.history.end();
  return batch;
}

void Turn::SaveRank(const Job& job, uint32_t rank) { parts_to_save_.insert({job.id, rank / kRanksPerPart}); }

void Turn::PushAll(const Job& job) {
  for (const auto& [host, ranks] : job.ranks_on) Push(host);
}

void Turn::Tell(Job& job, v1::Event event) {
  event.set_sequence(++job.last_sequence);
  event.set_time_unix_ms(absl::ToUnixMillis(now));
  event.set_generation(job.head().generation());
  if (job.last_sequence > job.record.sequence_limit()) {
    job.record.set_sequence_limit(job.last_sequence + kSequenceBlock);
    Save(job);
  }
  auto shared = std::make_shared<const v1::Event>(std::move(event));
  job.history.push_back(shared);
  if (job.history.size() > limits::kJobEvents) job.history.pop_front();
  fed_.insert(job.id);
  Emit(JobTold{job.id, std::move(shared)});
}

void Turn::Notice(Job& job, absl::string_view level, std::string text) {
  v1::Event event;
  event.mutable_notice()->set_level(std::string(level));
  event.mutable_notice()->set_text(std::move(text));
  Tell(job, std::move(event));
}

void Turn::Move(Job& job, LifecycleEvent event, std::string reason) {
  v1::JobState from = job.state();
  std::optional<v1::JobState> to = NextState(from, event);
  if (!to.has_value()) {
    // A bug of ours: the table is the authority, so the job stays where it is and the log says what was tried.
    Emit(WriteLog{WriteLog::Level::kError, absl::StrCat("job ", job.id.value(), ": ", EventName(event), " in state ",
                                                        StateName(from), " is not in the lifecycle's table")});
    return;
  }
  job.head().set_state(*to);
  EnterState(job, from);
  SetReason(job, std::move(reason));
  Save(job);
  Info(absl::StrCat("job ", job.id.value(), ": ", StateName(from), " -> ", StateName(*to), ": ", job.head().reason()));
  if (IsFinal(*to)) Emit(JobEnded{job.id});
}

void Turn::SetReason(Job& job, std::string reason) {
  job.head().set_reason(std::move(reason));
  v1::Event event;
  event.mutable_state()->set_state(job.state());
  event.mutable_state()->set_reason(job.head().reason());
  event.mutable_state()->set_restarts(job.head().restarts());
  Tell(job, std::move(event));
}

void Turn::EnterState(Job& job, v1::JobState from) {
  v1::JobState to = job.state();
  // Whatever state follows, a job that waited (also to be started again) does so no more.
  if (from == v1::JOB_STATE_QUEUED || from == v1::JOB_STATE_RECOVERING) {
    state.queue.erase(job.record.submit_index());
  }
  if (HasTrainers(to)) state.active.insert(job.id);
  if (to == v1::JOB_STATE_RUNNING && job.head().started_unix_ms() == 0) {
    job.head().set_started_unix_ms(absl::ToUnixMillis(now));
  }
  if (!IsFinal(to)) return;

  job.head().set_finished_unix_ms(absl::ToUnixMillis(now));
  job.nothing_desired = true;
  job.unconfirmed.clear();
  state.active.erase(job.id);
  state.queue.erase(job.record.submit_index());
  for (const auto& [name, ranks] : job.ranks_on) {
    auto host = state.hosts.find(name);
    if (host != state.hosts.end()) host->second.jobs.erase(job.id);
  }
  PushAll(job);
  SaveTold(job);
  EndLogsOfJob(*this, job);
  state.finished.push_back(job.id);
  if (state.finished.size() > kFinishedWithHistory) {
    Job& older = state.jobs.at(state.finished[state.finished.size() - 1 - kFinishedWithHistory]);
    while (older.history.size() > kEventsOfFinished) older.history.pop_front();
  }
  ScheduleAll();
}

Output Turn::Finish() {
  // Each round moves jobs forward in their lifecycle, so the rounds end; the bound is a guard against a bug of ours.
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
  for (const JobId& id : fed_) {
    auto it = state.jobs.find(id);
    if (it == state.jobs.end()) continue;
    Job& job = it->second;
    for (auto waiter = job.waiting.begin(); waiter != job.waiting.end();) {
      auto batch = MakeWatchBatch(job, waiter->first, waiter->second);
      if (!batch.has_value()) {
        ++waiter;
        continue;
      }
      Emit(*std::move(batch));
      job.waiting.erase(waiter++);
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

void Turn::WriteRecords() {
  // Ranks first: the job's record names their generation and makes them count, so a commit that was split in two and
  // lost its second half has changed nothing.
  for (const auto& [id, part] : parts_to_save_) {
    auto it = state.jobs.find(id);
    if (it != state.jobs.end()) output_.records.push_back(RankPartRecord(it->second, part));
  }
  for (const JobId& id : told_to_save_) {
    auto it = state.jobs.find(id);
    if (it == state.jobs.end()) continue;
    it->second.told_changed = false;
    output_.records.push_back(MakeToldRecord(it->second));
  }
  for (const JobId& id : jobs_to_save_) {
    auto it = state.jobs.find(id);
    if (it != state.jobs.end()) output_.records.push_back(MakeJobRecord(it->second));
  }
  for (const HostName& name : hosts_to_save_) {
    auto it = state.hosts.find(name);
    if (it != state.hosts.end()) output_.records.push_back(MakeHostRecord(it->second));
  }
  for (std::string& key : deletes_) output_.records.push_back({std::move(key), std::nullopt});
}

}  // namespace trainyard
