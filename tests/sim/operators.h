// Simulates the users: they submit jobs, watch them, request operations, retry while the coordinator is down, and check
// what they receive.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/coordinator_process.h"
#include "tests/sim/judge.h"
#include "tests/sim/scenario.h"

namespace trainyard::sim {

class World;

// Follows one job until its end, across all incarnations of the coordinator.
class JobWatcher : public std::enable_shared_from_this<JobWatcher> {
 public:
  JobWatcher(World& world, const JobPlan& plan);

  void Open();
  // Drops its stream, like a client whose connection broke, and reconnects.
  void Reopen();

 private:
  void RequestBatch(bool first);
  void HandleBatch(const WatchBatch& batch);
  void CountLostSteps(const std::string& notice);
  void HandleEvent(const v1::Event& event);
  void Close();
  void ReopenLater();

  World& world_;
  const JobPlan plan_;
  const JobId job_;
  WatchId watch_;
  WatchPosition position_;
  uint64_t last_step_ = 0;
  uint64_t last_eval_ = 0;
  uint64_t steps_ = 0;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  bool done_ = false;  // it has received the end of its job
};

class Operators {
 public:
  explicit Operators(World& world) : world_(world) {}

  void Begin(const Scenario& scenario);
  // Resumes all paused jobs and uncordons all hosts, so that every job can end.
  void ResumeAndUncordon();
  // Returns whether every watcher has received the end of its job.
  bool AllDone() const;
  void WatcherDone() { ++done_; }
  // Gives up a running host as lost [a planted bug, see mutation.h].
  void GiveUp(const std::string& host);

 private:
  void Submit(const JobPlan& plan);
  void Perform(const Operation& operation);
  void Resume(const JobId& job);
  void SendResume(const JobId& job);
  void ResumeUnasked(const JobId& job);  // [a planted bug, see mutation.h]
  void RequestSave(const JobId& job);
  void SetJobPriority(const JobId& job, uint32_t priority);
  void SetHostState(const std::string& host, v1::SetHostRequest::Action action, bool now);

  World& world_;
  std::vector<JobPlan> plans_;
  std::vector<std::shared_ptr<JobWatcher>> watchers_;
  size_t done_ = 0;  // watchers that have received the end of their job
};

JobId IdOf(const JobPlan& plan);
// Null: the scenario has no such job.
const JobPlan* FindPlan(const Scenario& scenario, const JobId& job);

}  // namespace trainyard::sim
