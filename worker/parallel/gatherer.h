// Sharded parameters, whole while they are used: gathers a unit into a slot, opens its doors, and closes them again. A
// shard group of one has the whole already: its doors open onto the shard, and nothing is gathered. Shards in host
// memory (offload.h) are copied to the device first; a part that is kept for backward lies on the device.
//
// A unit is one group, or two where some of it is frozen: they lie one behind the other.
//
// Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/event_log.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/slot_pool.h"

namespace trainyard {

class Gatherer {
 public:
  // The root has memory of its own, the other units slots. Nothing is owned.
  Gatherer(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators, SlotPool& pool,
           const DataParallelOptions& options);

  // Starts the all-gathers of a unit that is not gathered.
  absl::Status Start(int unit);
  // Waits for them and opens the unit. Possible errors: those of a Collective.
  absl::Status Wait(int unit);
  void Free(int unit);
  // Frees the unit but keeps a part of it, which the ranks of communicators.reshard gather again.
  void Reshard(int unit);
  absl::Status StartAgain(int unit);
  // What a pass that was not carried through has left. Possible errors: those of a Collective.
  absl::Status FreeAll();

  double waited_s() const { return waited_s_; }

 private:
  struct State {
    bool gathered = false;
    int slot = -1;                                          // -1: memory of its own
    std::vector<int> stagings = {};                         // that its gathers read
    std::vector<std::unique_ptr<Collective>> gathers = {};  // on their way
    int64_t event = -1;                                     // theirs
  };

  // What a gather of a shard in host memory reads.
  struct Staging {
    at::Tensor memory;
    bool busy = false;
    TrackedMemory use = {};
  };

  at::Tensor Stage(State& state, const FlatGroup& group);
  void Unstage(State& state);
  // Of each group of the unit, where it lies once it is gathered.
  std::vector<at::Tensor> Places(int unit) const;
  at::Tensor PartToKeep(const at::Tensor& whole) const;

  const Model& model_;
  const FlatGroups& groups_;
  Communicator& shard_;
  Communicator* const reshard_;  // null: parts are not kept
  SlotPool& pool_;
  EventLog* const events_;
  Ledger* const ledger_;
  Clock& clock_;
  at::Tensor root_;
  TrackedMemory root_use_;
  bool in_place_ = false;                    // doors open onto the shards themselves
  std::vector<std::vector<int>> groups_of_;  // by unit
  std::vector<at::Tensor> kept_;             // by group; undefined where nothing is
  std::vector<TrackedMemory> kept_uses_;
  std::vector<State> states_;  // by unit
  std::vector<Staging> stagings_;
  double waited_s_ = 0;
};

}  // namespace trainyard
