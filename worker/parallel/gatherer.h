// Makes sharded parameters whole while they are used: gathers a unit into a slot (slot_pool.h), opens its flat groups
// there (FlatGroup::Open), and closes them again. If a shard is the whole group, the group opens on it, and nothing is
// gathered. Shards in host memory (offload.h) are copied to the device first; Reshard stores its parts on the device.
//
// A unit consists of one group, or of several, which are stored one after the other: its frozen parameters and a tied
// embedding have groups of their own (group_plan.h).
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
  // The root has memory of its own; the other units use slots. The arguments must outlive this object.
  Gatherer(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators, SlotPool& pool,
           const DataParallelOptions& options);

  // Starts the all-gathers of a unit that is not gathered.
  absl::Status Start(int unit);
  // Waits for these all-gathers and opens the unit. Fails with the errors of a Collective.
  absl::Status Wait(int unit);
  void Free(int unit);
  // Frees the unit but stores a part of it, from which StartRegather gathers it among the ranks of
  // communicators.reshard.
  void Reshard(int unit);
  absl::Status StartRegather(int unit);
  // Frees everything that is gathered: what an unfinished pass has left, or all units of a pipeline stage. Fails with
  // the errors of a Collective.
  absl::Status FreeAll();

  double waited_s() const { return waited_s_; }

 private:
  struct State {
    bool gathered = false;
    int slot = -1;                                          // -1: memory of its own
    std::vector<int> stagings = {};                         // indices in stagings_ of the memory that its gathers read
    std::vector<std::unique_ptr<Collective>> gathers = {};  // under way
    int64_t event = -1;                                     // the gathers' event in events_
  };

  // Device memory with a copy of a shard in host memory; the gather reads the copy.
  struct Staging {
    at::Tensor memory;
    bool busy = false;
    TrackedMemory use = {};
  };

  // Copies the group's shard from host memory to a Staging, which the gather reads. Unstage releases all of `state`.
  at::Tensor Stage(State& state, const FlatGroup& group);
  void Unstage(State& state);
  // Returns, for each group of the unit, the memory that it is gathered into.
  std::vector<at::Tensor> Destinations(int unit) const;
  at::Tensor ReshardedPart(const at::Tensor& whole) const;

  const Model& model_;
  const FlatGroups& groups_;
  Communicator& shard_;
  Communicator* const reshard_;  // null: no parts are stored
  SlotPool& pool_;
  EventLog* const events_;
  Ledger* const ledger_;
  Clock& clock_;
  StreamWaits* const stream_waits_;
  at::Tensor root_;
  TrackedMemory root_use_;
  bool in_place_ = false;                    // groups open onto the shards themselves
  std::vector<std::vector<int>> groups_of_;  // by unit
  std::vector<at::Tensor> resharded_parts_;  // by group; undefined where no part is stored
  std::vector<TrackedMemory> resharded_uses_;
  std::vector<State> states_;  // by unit
  std::vector<Staging> stagings_;
  double waited_s_ = 0;
};

}  // namespace trainyard
