// One turn of the core: the state, the time, and what this event brings about. The functions of ops/ change the state
// through references and say here what follows; the turn then writes each changed record once, sends each host at most
// one new desired state, and feeds waiting watchers once. Used on the core's thread only.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {

class Turn {
 public:
  Turn(State& state, absl::Time now) : state(state), now(now) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  State& state;
  const absl::Time now;

  void Emit(Effect effect) { output_.effects.push_back(std::move(effect)); }
  void Info(std::string text) { Emit(WriteLog{WriteLog::Level::kInfo, std::move(text)}); }
  void Warn(std::string text) { Emit(WriteLog{WriteLog::Level::kWarning, std::move(text)}); }

  // Records to be written at the end of the turn.
  void Save(const Job& job) { jobs_to_save_.insert(job.id); }
  void SaveRank(const Job& job, uint32_t rank);
  void SaveTold(const Job& job) { told_to_save_.insert(job.id); }
  void Save(const Host& host) { hosts_to_save_.insert(host.name); }
  void Delete(std::string key) { deletes_.push_back(std::move(key)); }

  // This host's desired state has changed.
  void Push(const HostName& host) { hosts_to_push_.insert(host); }
  void PushAll(const Job& job);

  // Something happened that may move the job on; or that may let waiting jobs be placed.
  void Touch(const Job& job) { touched_.insert(job.id); }
  void ScheduleAll() { schedule_all_ = true; }
  void Schedule(const Job& job) { to_schedule_.insert(job.record.submit_index()); }

  // Adds an event to the job's history: watchers get it, metrics count it.
  void Tell(Job& job, v1::Event event);
  void Notice(Job& job, absl::string_view level, std::string text);
  // Moves the job by the lifecycle's table, with the reason an operator should see.
  // REQUIRES: the table has (state, event).
  void Move(Job& job, LifecycleEvent event, std::string reason);
  // The state stays; why it stands there has changed.
  void SetReason(Job& job, std::string reason);

  // Runs what was touched and scheduled until nothing is left, then makes the records and messages.
  Output Finish();

 private:
  void EnterState(Job& job, v1::JobState from);
  void FeedWatchers();
  void SendDesired();
  void WriteRecords();

  Output output_;
  std::set<JobId> jobs_to_save_;
  std::set<std::pair<JobId, uint32_t>> parts_to_save_;
  std::set<JobId> told_to_save_;
  std::set<HostName> hosts_to_save_;
  std::set<HostName> hosts_to_push_;
  std::set<JobId> touched_;
  std::set<JobId> fed_;
  std::set<uint64_t> to_schedule_;
  bool schedule_all_ = false;
  std::vector<std::string> deletes_;
};

// The events a watcher that has seen `after_sequence` is due, at most kWatchBatch; none: it must wait.
std::optional<WatchBatch> MakeWatchBatch(const Job& job, WatchId watch, uint64_t after_sequence);

}  // namespace trainyard
