#include "worker/parallel/gatherer.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "common/status_macros.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Gatherer::Gatherer(const FlatGroups& groups, Communicator& shard, SlotPool& pool, EventLog* events, Ledger* ledger)
    : groups_(groups), shard_(shard), pool_(pool), events_(events), ledger_(ledger), states_(groups.size()) {
  const FlatGroup& root = *groups[0];
  if (root.placements().parameters == Placement::kReplicate || InPlace(root)) return;
  root_ = TakeMemory(ledger, MemoryKind::kReserved, root_use_,
                     [&] { return at::empty({root.layout().total}, root.weights().options()); });
}

absl::Status Gatherer::Start(int unit) {
  State& state = states_[unit];
  state.gathered = true;
  const FlatGroup& group = *groups_[unit];
  if (InPlace(group)) return absl::OkStatus();
  state.event = BeginEvent(events_, EventKind::kGather, group.name());
  at::Tensor whole = root_;
  if (unit == 0) {
    root_use_.Become(MemoryKind::kParameters);
  } else {
    ASSIGN_OR_RETURN(state.slot, pool_.AcquireForGather(&shard_));
    whole = pool_.Memory(state.slot, group.weights().scalar_type(), group.layout().total);
  }
  if (shard_.world_size() == 1) {
    whole.copy_(group.weights());
  } else {
    state.gather = shard_.AllGather(whole, group.weights_on_host() ? Stage(state, group) : group.weights());
  }
  return absl::OkStatus();
}

at::Tensor Gatherer::Stage(State& state, const FlatGroup& group) {
  auto free = std::find_if(stagings_.begin(), stagings_.end(), [](const Staging& staging) { return !staging.busy; });
  if (free == stagings_.end()) {
    int64_t longest = 0;
    for (const auto& each : groups_) longest = std::max(longest, each->layout().shard);
    Staging staging;
    staging.memory = TakeMemory(ledger_, MemoryKind::kBuffers, staging.use,
                                [&] { return shard_.NewBuffer(longest, group.weights().scalar_type()); });
    stagings_.push_back(std::move(staging));
    free = stagings_.end() - 1;
  }
  free->busy = true;
  state.staging = static_cast<int>(free - stagings_.begin());
  at::Tensor staged = free->memory.narrow(0, 0, group.layout().shard);
  staged.copy_(group.weights());
  return staged;
}

void Gatherer::Unstage(State& state) {
  if (state.staging >= 0) stagings_[static_cast<size_t>(state.staging)].busy = false;
  state.staging = -1;
}

absl::Status Gatherer::Wait(int unit) {
  State& state = states_[unit];
  FlatGroup& group = *groups_[unit];
  if (InPlace(group)) {
    group.Open(group.weights());
    return absl::OkStatus();
  }
  absl::Status status;
  if (state.gather != nullptr) status = TimedWait(*state.gather, waited_s_);
  state.gather = nullptr;
  Unstage(state);
  EndEvent(events_, state.event);
  RETURN_IF_ERROR(status) << "while gathering unit " << group.name();
  group.Open(unit == 0 ? root_ : pool_.Memory(state.slot, group.weights().scalar_type(), group.layout().total));
  return absl::OkStatus();
}

void Gatherer::Free(int unit) {
  State& state = states_[unit];
  groups_[unit]->Close();
  if (!InPlace(*groups_[unit])) BeginEvent(events_, EventKind::kFree, groups_[unit]->name());
  if (unit == 0) root_use_.Become(MemoryKind::kReserved);
  if (state.slot >= 0) pool_.Release(state.slot);
  Unstage(state);
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
