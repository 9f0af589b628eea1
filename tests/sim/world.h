// One simulated cluster: the production cores of the coordinator and the daemons, and models of everything else, driven
// by one scenario in one thread. The same scenario gives the same run, event by event.
//
//   Result result = World(DrawScenario(42)).Run();
//   if (result.violation.has_value()) ...
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/coordinator_process.h"
#include "tests/sim/engine.h"
#include "tests/sim/group.h"
#include "tests/sim/judge.h"
#include "tests/sim/machine.h"
#include "tests/sim/mutation.h"
#include "tests/sim/network.h"
#include "tests/sim/operators.h"
#include "tests/sim/scenario.h"
#include "tests/sim/script.h"
#include "tests/sim/stale.h"
#include "tests/sim/storage.h"

namespace trainyard::sim {

struct WorldOptions {
  Mutation mutation = Mutation::kNone;
  bool trace = false;
  uint64_t check_every = 1;  // rounds of the coordinator between two checks of its whole state
  bool keep_log = false;     // returns the coordinator's log in Result::logged
  // For a cluster whose coordinator has lost its store: the run folders of the previous incarnation of the cluster, and
  // the number of this incarnation.
  const Storage* folders = nullptr;
  uint64_t incarnation = 0;
  absl::Duration run_for = absl::InfiniteDuration();  // after this time everything is switched off
};

// Counts of the coordinator's decisions.
struct Decisions {
  uint64_t unreachable = 0;  // notices that a host has no contact
  uint64_t hosts_lost = 0;
  uint64_t hangs = 0;  // decisions by the rule `hang`, with or without a restart
  uint64_t restarts = 0;
};

struct Result {
  std::optional<Violation> violation;
  std::deque<std::string> trace;
  uint64_t events = 0;  // of the coordinator's core
  uint64_t daemon_events = 0;
  absl::Duration virtual_time;
  std::map<uint32_t, JobOutcome> jobs;  // by number
  std::vector<std::string> logged;
  Decisions decisions;
  size_t coordinator_bytes = 0;  // the memory that the coordinator's last crash freed
  uint64_t fingerprint = 0;      // of the final store and the number of actions: equal for equal runs
};

class World {
 public:
  explicit World(const Scenario& scenario, const WorldOptions& options = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Result Run();

  // ---- called by the parts ----
  absl::Time LocalTime(const Machine& machine) const;
  absl::Time RealTime(const Machine& machine, absl::Time local) const;
  int64_t NewPid() { return ++last_pid_; }
  const JobPlan& PlanOf(const JobId& job) const;
  std::shared_ptr<Group> GroupFor(const GroupId& id, uint32_t ranks);
  std::shared_ptr<ScriptGroup> ScriptGroupFor(const GroupId& id, uint32_t ranks);
  void CountRound(size_t events) {
    ++rounds_;
    events_ += events;
  }
  bool ShouldCheckState() const { return rounds_ % options_.check_every == 0; }
  // Whether no two of these hosts are cut off from each other.
  bool AllReachEachOther(const std::set<const Machine*>& hosts) const;
  // The coordinator calls these for each line of its log and for each event that it publishes about a job.
  void RecordLogLine(const std::string& text);
  void HandlePublished(const JobId& job, const v1::Event& event);
  // The coordinator has acknowledged this fact: checks that the synced records contain it, unless its generation has
  // ended in these records.
  void CheckDurable(const v1::Fact& fact);
  // Planted bugs: an exit that never happened, reports of another generation, another generation's save as ready.
  void ForgeExit(v1::FactBatch& batch);
  void ForgeReports(v1::RankReports& reports);
  void ForgeReady(v1::FactBatch& batch);
  // Records the grants that the coordinator sends to a host.
  void RecordGrants(v1::DesiredState& desired);
  // A trainer has reached a point of a save: a fault that waits for such a point may strike.
  void StrikeInSave(Machine& machine, Trainer& trainer);
  uint64_t incarnation() const { return options_.incarnation; }

  const Scenario scenario;
  const Mutation mutation;
  Engine engine;
  Random random;
  Judge judge;
  Storage storage;
  Network network;
  CoordinatorProcess coordinator;
  Operators operators;
  uint64_t daemon_events = 0;
  std::map<JobId, uint64_t> script_progress;  // the units of work that each script has stored

 private:
  // faults.cc
  void Begin(const Fault& fault);
  void End(const Fault& fault);
  void BeginAtHost(const Fault& fault, Machine& machine);
  std::shared_ptr<Trainer> PickTrainer(const Fault& fault);
  // The script that the fault hits; null: it hits a trainer, if there is one.
  std::shared_ptr<Script> PickScript(const Fault& fault);
  void CrashTrainer(const Fault& fault);
  void FreezeTrainer(const Fault& fault);
  void SlowTrainer(const Fault& fault);
  void LeaveOutOperation(const Fault& fault);
  void ExpectHang(Trainer& trainer);
  bool IsQuiet(absl::Time from, absl::Time until) const;
  void StopHost(const Fault& fault, Machine& machine);
  std::pair<const Machine*, const Machine*> PairOf(const Fault& fault) const;
  void Heal();
  // Runs once per second from `faults_end` on: checks the bounds, resumes paused jobs and uncordons hosts, so that
  // every job can end.
  void UnblockJobs();
  bool Settled() const;
  void CheckBounds();
  // After the faults, an elastic job that runs alone must get the ranks for which there are slots.
  void CheckGrowth();
  uint32_t MostRanks(const JobPlan& plan) const;

  const WorldOptions options_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::map<GroupId, std::shared_ptr<Group>> groups_;
  std::map<GroupId, std::shared_ptr<ScriptGroup>> script_groups_;
  std::map<JobId, absl::Time> too_few_since_;  // elastic jobs that could have more ranks
  std::map<std::pair<const Machine*, const Machine*>, int> data_cuts_;
  std::vector<std::string> logged_;
  Decisions decisions_;
  int64_t last_pid_ = 100;
  uint64_t rounds_ = 0;
  uint64_t events_ = 0;
  bool healed_ = false;
};

}  // namespace trainyard::sim
