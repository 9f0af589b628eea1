// A worker daemon's process: the production core, whose effects are carried out on the simulated host. It can crash at
// any event; the next incarnation finds the rank folders of the previous one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "tests/sim/engine.h"
#include "tests/sim/judge.h"
#include "worker/agent/core.h"

namespace trainyard::sim {

class World;
class Machine;
class Trainer;

// A trainer's connection to one incarnation of the daemon.
struct Pipe {
  agent::LinkId link;
  uint64_t incarnation = 0;
  TrainerId trainer;
  std::shared_ptr<Channel> up;
  std::shared_ptr<Channel> down;
  bool over = false;
};
using PipePtr = std::shared_ptr<Pipe>;

class DaemonProcess {
 public:
  DaemonProcess(World& world, Machine& machine) : world_(world), machine_(machine) {}

  void Start();
  void Crash();
  // Delivers SIGTERM to the daemon, which is started again `away` after its exit.
  void Terminate(bool stop_trainers, absl::Duration away);
  bool alive() const { return core_ != nullptr; }
  uint64_t incarnation() const { return incarnation_; }
  agent::CoreStats stats() const { return core_->stats(); }

  // Posts an event to the given incarnation; the event is lost if that incarnation has ended.
  void Post(uint64_t incarnation, agent::Event event);

  // ---- called by trainers and the network ----
  PipePtr Connect(const v1::RegisterTrainer& registration);
  void PutValue(const TrainerId& id, const std::string& value);
  // Stores values that the coordinator has sent on the stream of the given incarnation.
  void TakeValues(uint64_t incarnation, const v1::StoreValues& values);
  // Whether the values of all ranks have arrived.
  bool HasValues(const GroupId& group, uint32_t ranks) const;

 private:
  // The rendezvous values of one group, as the relay stores them.
  struct Values {
    bool sealed = false;
    std::map<std::string, std::string> known;  // received from the coordinator
    std::map<std::string, std::string> puts;   // of the trainers on this host
  };

  void WakeLater();
  void SendPuts(const GroupId& group, const std::map<std::string, std::string>& puts);
  // Starts the ranks of a script that wait for the address of rank 0.
  void PostMaster(const GroupId& group);
  void WriteOutbox(const agent::StoreFacts& store, double part);

  void Do(agent::Dial& effect);
  void Do(agent::HangUp& effect);
  void Do(agent::SendToCoordinator& effect);
  void Do(agent::StoreFacts& effect);
  void Do(agent::SampleProcesses& effect);
  void Do(agent::ExamineProcess& effect);
  void Do(agent::CheckPath& effect);
  void Do(agent::SendLinkMessage& effect);
  void Do(agent::CloseLink& effect);
  void Do(agent::StartProcess& effect);
  void Do(agent::SignalProcess& effect);
  void Do(agent::MarkReported& effect);
  void Do(agent::AdmitTrainer& effect);
  void Do(agent::FindMaster& effect);
  void Do(agent::SealGroup& effect);
  void Do(agent::EndGroup& effect);
  void Do(agent::RememberCluster& effect);
  void Do(agent::Log& effect);
  void Do(agent::Leave& effect);
  template <typename Other>
  void Do(Other&) {}  // the simulation has neither output of ranks nor snapshots

  World& world_;
  Machine& machine_;
  uint64_t incarnation_ = 0;
  uint64_t last_link_ = 0;
  uint64_t wake_ = 0;  // number of the newest wake-up; earlier ones do nothing
  bool attached_ = false;
  absl::Duration away_ = absl::Seconds(1);  // time between its exit and its next start
  std::unique_ptr<agent::Core> core_;
  std::map<agent::LinkId, PipePtr> pipes_;
  std::map<GroupId, Values> values_;
  std::set<TrainerId> awaiting_master_;       // ranks of scripts
  std::optional<agent::StoreFacts> storing_;  // the write in progress; a crash leaves only a part of it on disk
};

}  // namespace trainyard::sim
