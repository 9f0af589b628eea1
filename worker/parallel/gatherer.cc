#include "worker/parallel/gatherer.h"

#include <ATen/ops/empty.h>

#include "common/status_macros.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Gatherer::Gatherer(const FlatGroups& groups, Communicator& shard, SlotPool& pool, EventLog* events, Ledger* ledger)
    : groups_(groups), shard_(shard), pool_(pool), events_(events), states_(groups.size()) {
  const FlatGroup& root = *groups[0];
  if (shard.world_size() == 1 || root.placements().parameters == Placement::kReplicate) return;
  root_ = TakeMemory(ledger, MemoryKind::kReserved, root_use_,
                     [&] { return at::empty({root.layout().total}, root.weights().options()); });
}

absl::Status Gatherer::Start(int unit) {
  State& state = states_[unit];
  state.gathered = true;
  const FlatGroup& group = *groups_[unit];
  if (shard_.world_size() == 1) return absl::OkStatus();
  state.event = BeginEvent(events_, EventKind::kGather, group.name());
  at::Tensor whole = root_;
  if (unit == 0) {
    root_use_.Become(MemoryKind::kParameters);
  } else {
    ASSIGN_OR_RETURN(state.slot, pool_.AcquireForGather(&shard_));
    whole = pool_.Memory(state.slot, group.weights().scalar_type(), group.layout().total);
  }
  state.gather = shard_.AllGather(whole, group.weights());
  return absl::OkStatus();
}

absl::Status Gatherer::Wait(int unit) {
  State& state = states_[unit];
  FlatGroup& group = *groups_[unit];
  if (shard_.world_size() == 1) {
    group.Open(group.weights());
    return absl::OkStatus();
  }
  absl::Status status = TimedWait(*state.gather, waited_s_);
  state.gather = nullptr;
  EndEvent(events_, state.event);
  RETURN_IF_ERROR(status) << "while gathering unit " << group.name();
  group.Open(unit == 0 ? root_ : pool_.Memory(state.slot, group.weights().scalar_type(), group.layout().total));
  return absl::OkStatus();
}

void Gatherer::Free(int unit) {
  State& state = states_[unit];
  groups_[unit]->Close();
  if (shard_.world_size() > 1) BeginEvent(events_, EventKind::kFree, groups_[unit]->name());
  if (unit == 0) root_use_.Become(MemoryKind::kReserved);
  if (state.slot >= 0) pool_.Release(state.slot);
  state = State();
}

absl::Status Gatherer::FreeAll() {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (!states_[unit].gathered) continue;
    if (states_[unit].gather != nullptr) {
      RETURN_IF_ERROR(states_[unit].gather->Wait());
    }
    Free(static_cast<int>(unit));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
