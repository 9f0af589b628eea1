// The processes of a job with `command`, as the control plane sees them. The control plane starts and ends them, and
// learns their state only from their exits, because they have no link. The simulated script works with any number of
// ranks, which complete units of work together and store how many are done. A new generation continues from there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "tests/sim/rank_process.h"
#include "tests/sim/scenario.h"
#include "trainyard/v1/trainer.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::sim {

class Script;

// The ranks of one generation. When one rank ends early, the others fail, as in a broken collective.
class ScriptGroup : public std::enable_shared_from_this<ScriptGroup> {
 public:
  ScriptGroup(World& world, const agent::GroupId& id, uint32_t ranks, const JobPlan& plan)
      : world_(world), id_(id), ranks_(ranks), plan_(plan) {}

  // The rank has started, and connects to the others; the work begins when all have connected.
  void Join(Script* script);
  // The rank has ended. `noticed`: its connections were closed; otherwise only a time limit shows it to the others.
  void Leave(Script* script, bool noticed);

 private:
  void Begin();
  void Work();
  bool CanWork() const;
  void Finish();
  void FailRest(absl::Duration shortest, absl::Duration longest);

  World& world_;
  const agent::GroupId id_;
  const uint32_t ranks_;
  const JobPlan plan_;
  std::map<uint32_t, Script*> members_;
  uint64_t done_ = 0;  // units of work
  bool begun_ = false;
  bool over_ = false;  // its ranks are about to end
  absl::Time blocked_since_ = absl::InfiniteFuture();
};

class Script : public RankProcess, public std::enable_shared_from_this<Script> {
 public:
  Script(World& world, Machine& machine, const agent::TrainerId& id, int64_t pid, uint32_t ranks, const JobPlan& plan);

  void Boot();
  void Signal(int signal);
  void Disconnect();  // its host has died: no process records how the script ended
  void Exit(int code);
  void ExitLater(int code, absl::Duration shortest, absl::Duration longest);

 private:
  void End(v1::TrainerExited exited);

  const bool ignores_stop_;
  std::shared_ptr<ScriptGroup> group_;
};

}  // namespace trainyard::sim
