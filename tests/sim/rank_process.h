// The simulated process of a rank: what trainers and scripts have in common. A process can be stopped; actions that
// become due meanwhile run when it continues.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/agent/trainer_id.h"

namespace trainyard::sim {

class World;
class Machine;

class RankProcess {
 public:
  // Runs the action now, or when the process is no longer frozen; never if it has ended.
  void Do(std::function<void()> action);
  void Freeze();
  void Thaw();

  bool alive() const { return !ended_; }
  bool frozen() const { return frozen_; }
  Machine& machine() { return machine_; }
  const agent::TrainerId& id() const { return id_; }

 protected:
  RankProcess(World& world, Machine& machine, const agent::TrainerId& id, int64_t pid)
      : world_(world), machine_(machine), id_(id), pid_(pid) {}
  ~RankProcess() = default;

  // Records that the process no longer exists.
  void SetEnded();

  World& world_;
  Machine& machine_;
  const agent::TrainerId id_;
  const int64_t pid_;
  bool ended_ = false;

 private:
  bool frozen_ = false;
  std::vector<std::function<void()>> deferred_;
};

}  // namespace trainyard::sim
