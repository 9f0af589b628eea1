// A host: its daemon, its trainers' processes with their shims, and its disk, which survives all of them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/sim/daemon_process.h"
#include "tests/sim/scenario.h"
#include "tests/sim/script.h"
#include "tests/sim/trainer.h"

namespace trainyard::sim {

// The files that the shim and the daemon have written about one trainer.
struct RankFolder {
  std::string token;
  int64_t pid = 0;
  std::optional<v1::TrainerExited> exited;
  bool reported = false;
  std::optional<absl::Duration> command_grace = {};  // of a script
  bool stopped = false;                              // a daemon has sent SIGTERM to the script
};

class Machine {
 public:
  Machine(World& world, std::string name, const HostPlan& plan);

  const std::string& name() const { return name_; }
  const HostPlan& plan() const { return plan_; }
  DaemonProcess& daemon() { return *daemon_; }
  bool up() const { return up_; }
  bool control_cut() const { return !up_ || cuts_control_ > 0; }
  bool data_cut() const { return !up_ || cuts_data_ > 0; }

  // ---- called by the daemon ----
  void Launch(uint64_t incarnation, const v1::DesiredTrainer& desired, const std::string& token);
  void Signal(const TrainerId& id, int signal);
  bool Runs(const TrainerId& id) const { return trainers_.contains(id) || scripts_.contains(id); }
  Trainer* Find(const TrainerId& id);
  Script* FindScript(const TrainerId& id);

  // ---- called by a trainer's process; its shim records how it ended ----
  void Ended(const TrainerId& id, const v1::TrainerExited& exited);

  // ---- faults ----
  void Kill();
  void Boot();
  void CutControl();
  void CutData();
  void HealControl();
  void HealData();
  void SetPacketLoss(double share) { packet_loss_ = share; }
  double packet_loss() const { return packet_loss_; }  // the share of packets that are lost
  std::map<TrainerId, std::shared_ptr<Trainer>>& trainers() { return trainers_; }
  std::map<TrainerId, std::shared_ptr<Script>>& scripts() { return scripts_; }

  std::optional<Fault> save_fault;  // strikes when a trainer here reaches a point of a save
  uint64_t save_points = 0;         // the number of such points before it strikes

  // Its disk.
  std::map<TrainerId, RankFolder> folders;
  std::string cluster;  // the id of the cluster that the daemon joined
  std::string outbox;   // the contents of the daemon's outbox file
  bool disk_full = false;
  int write_faults = 0;  // active faults that make its trainers' writes into run folders fail

 private:
  void StartProcess(const TrainerId& id, int64_t pid, const v1::DesiredTrainer& desired, const std::string& token);
  void ReportStartFailure(uint64_t incarnation, const TrainerId& id, const std::string& why);

  World& world_;
  const std::string name_;
  const HostPlan plan_;
  bool up_ = true;
  int cuts_control_ = 0;  // active faults that cut it from the coordinator
  int cuts_data_ = 0;     // active faults that cut its data network
  double packet_loss_ = 0;
  std::unique_ptr<DaemonProcess> daemon_;
  std::map<TrainerId, std::shared_ptr<Trainer>> trainers_;  // running
  std::map<TrainerId, std::shared_ptr<Script>> scripts_;    // running
  std::map<TrainerId, int> pending_signals_;                // for shims that have not started their trainer yet
};

}  // namespace trainyard::sim
