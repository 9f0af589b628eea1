// Sharded parameters, whole while they are used: gathers a unit into a slot, opens its doors, and closes them again. A
// shard group of one has the whole already: its doors open onto the shard, and nothing is gathered. Shards in host
// memory (offload.h) are copied to the device first.
//
// Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/event_log.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/slot_pool.h"

namespace trainyard {

class Gatherer {
 public:
  // `groups[u]` is unit u. The root has memory of its own, the others slots. `events` and `ledger` may be null. Nothing
  // is owned.
  Gatherer(const FlatGroups& groups, Communicator& shard, SlotPool& pool, EventLog* events, Ledger* ledger);

  // Starts the all-gather of a unit that is not gathered.
  absl::Status Start(int unit);
  // Waits for it and opens the unit. Possible errors: those of a Collective.
  absl::Status Wait(int unit);
  void Free(int unit);
  // What a pass that was not carried through has left. Possible errors: those of a Collective.
  absl::Status FreeAll();

  double waited_s() const { return waited_s_; }

 private:
  struct State {
    bool gathered = false;
    int slot = -1;                       // -1: memory of its own
    int staging = -1;                    // -1: the shard is gathered from where it lies
    std::unique_ptr<Collective> gather;  // on its way
    int64_t event = -1;                  // its
  };

  // What a gather of a shard in host memory reads.
  struct Staging {
    at::Tensor memory;
    bool busy = false;
    HeldMemory use = {};
  };

  // Whether the doors of `group` open onto the shard itself.
  bool InPlace(const FlatGroup& group) const { return shard_.world_size() == 1 && !group.weights_on_host(); }
  at::Tensor Stage(State& state, const FlatGroup& group);
  void Unstage(State& state);

  const FlatGroups& groups_;
  Communicator& shard_;
  SlotPool& pool_;
  EventLog* const events_;
  Ledger* const ledger_;
  at::Tensor root_;
  HeldMemory root_use_;
  std::vector<State> states_;
  std::vector<Staging> stagings_;
  double waited_s_ = 0;
};

}  // namespace trainyard
