// One turn of the core: the state, the time, and what one event leads to. The functions of handlers/ change the state
// through references, and register here which records and messages result. At the end the turn writes each changed
// record once, sends each host at most one new desired state, and answers waiting watchers once. Used on the core's
// thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "coordinator/core/core_time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/notice.h"

namespace trainyard {

class Turn {
 public:
  Turn(State& state, const CoreTime& time) : state(state), now(time.now), steady(time.steady), wall(time.wall) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  State& state;
  const absl::Time now;     // the time of decisions
  const absl::Time steady;  // the clock by which goodput is accounted
  const absl::Time wall;    // the time that users see

  void Emit(Effect effect) { output_.effects.push_back(std::move(effect)); }
  void Info(std::string text) { Emit(WriteLog{WriteLog::Level::kInfo, std::move(text)}); }
  void Warn(std::string text) { Emit(WriteLog{WriteLog::Level::kWarning, std::move(text)}); }

  // These mark the records that the turn writes at its end: that of a job, of one of its ranks, of the newest published
  // reports of a job, and of a host.
  void Save(const Job& job) { changes_[job.id].record = true; }
  void SaveRank(const Job& job, uint32_t rank);
  void SavePublished(const Job& job) { changes_[job.id].published = true; }
  void Save(const Host& host) { hosts_to_save_.insert(host.name); }
  void Delete(std::string key) { deletes_.push_back(std::move(key)); }
  void Put(Record record) { cluster_records_.push_back(std::move(record)); }

  // Sends the host its desired state at the end of the turn.
  void Push(const HostName& host) { hosts_to_push_.insert(host); }
  void PushAll(const Job& job);

  // Adds the job to the queue now.
  void Enqueue(Job& job);
  // These act at the end of the turn. Touch checks whether the job moves to another state, Schedule tries to place this
  // waiting job, and ScheduleAll tries to place all waiting jobs.
  void Touch(const Job& job) { touched_.insert(job.id); }
  void ScheduleAll() { schedule_all_ = true; }
  void Schedule(const Job& job) { to_schedule_.insert(job.record.submit_index()); }

  // Adds a durable event to the job's history: watchers receive it, metrics count it, the next coordinator loads it.
  // Texts are cut to limits::kDurableTextBytes.
  void Publish(Job& job, v1::Event event);
  void Notice(Job& job, NoticeLevel level, std::string text);
  // Publishes a decision about the job as a notice that `trainctl why` shows, and logs it. `text` contains the facts.
  void Decide(Job& job, DecisionRule rule, NoticeLevel level, std::string text);
  // The same for a host, as a durable event of the cluster; an empty name means the whole cluster.
  void DecideCluster(const HostName& host, DecisionRule rule, NoticeLevel level, std::string text);
  // Publishes a step, an evaluation or a new reason: watchers receive it, and metrics count it if `is_new`. Not
  // durable.
  void PublishReport(Job& job, v1::Event event, bool is_new);
  // Stores the newest step and evaluation reports, because no daemon will send them again.
  void StoreReports(Job& job);
  // Drops the step and evaluation reports of a finished job that is not among the newest.
  void ForgetReports(Job& job);
  // Ensures that no later coordinator uses the job's sequence numbers again.
  void ReserveSequences(Job& job);
  // Moves the job by the table of the lifecycle; `reason` is what an operator sees.
  // REQUIRES: the table has (state, event).
  void Move(Job& job, LifecycleEvent event, std::string reason);
  // Changes the reason of the job's state and publishes it; durable only if it is the first event of the job.
  void SetReason(Job& job, std::string reason);

  // Advances touched jobs and places scheduled ones until none is left, then makes the records and messages.
  Output Finish();

 private:
  void EnterState(Job& job, v1::JobState from);
  uint64_t NextSequence(Job& job);
  void PublishState(Job& job, bool durable);
  void PublishClusterEvent(v1::Event event);
  void DropEvents(Job& job, const std::vector<uint64_t>& sequences);
  void ShrinkEvents(Job& job, size_t goal, size_t min_events, History::Dropped what);
  void LimitEvents(Job& job);
  void SendToWatchers();
  void SendDesired();
  void WriteRecords();
  void WriteJob(const JobId& id);

  // The records of a job that the turn must write or delete. A part is a record that holds several ranks or reports.
  struct JobChanges {
    bool record = false;
    bool published = false;
    std::set<uint32_t> rank_parts;
    std::map<uint64_t, EventPtr> events;
    std::vector<uint64_t> dropped_events;
    std::set<uint64_t> report_parts;
    std::vector<uint64_t> dropped_report_parts;
  };

  Output output_;
  uint32_t last_group_ = 0;  // the newest Record::group
  std::map<JobId, JobChanges> changes_;
  std::vector<Record> cluster_records_;
  std::set<HostName> hosts_to_save_;
  std::set<HostName> hosts_to_push_;
  std::set<JobId> touched_;
  std::set<JobId> jobs_with_events_;  // jobs whose watchers may receive more
  std::set<uint64_t> to_schedule_;
  bool schedule_all_ = false;
  std::vector<std::string> deletes_;
};

// Returns the next events for a watcher at `position`, at most kWatchBatch, and moves the position; nullopt: the
// watcher must wait.
std::optional<WatchBatch> MakeWatchBatch(const Job& job, WatchId watch, WatchPosition& position);

}  // namespace trainyard
