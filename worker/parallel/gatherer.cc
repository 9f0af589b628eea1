#include "worker/parallel/gatherer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "common/status_macros.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Gatherer::Gatherer(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators, SlotPool& pool,
                   const DataParallelOptions& options)
    : model_(model),
      groups_(groups),
      shard_(*communicators.shard),
      reshard_(communicators.reshard),
      pool_(pool),
      events_(options.events),
      ledger_(options.ledger),
      clock_(*options.clock),
      stream_waits_(options.stream_waits),
      in_place_(shard_.world_size() == 1),
      groups_of_(model.units().size()),
      resharded_parts_(groups.size()),
      resharded_uses_(groups.size()),
      states_(model.units().size()) {
  int64_t root_elements = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    const FlatGroup& group = *groups[g];
    if (group.unit() < 0) continue;
    if (group.weights_on_host()) in_place_ = false;
    groups_of_[group.unit()].push_back(static_cast<int>(g));
    if (group.unit() == 0) root_elements += group.layout().total;
    if (group.unit() == 0 || reshard_ == nullptr) continue;
    const int64_t part = group.layout().total / reshard_->world_size();
    resharded_parts_[g] = TrackTensor(ledger_, MemoryKind::kReserved, resharded_uses_[g],
                                      [&] { return reshard_->NewBuffer(part, group.weights().scalar_type()); });
  }
  if (in_place_ || root_elements == 0) return;
  const auto like = at::TensorOptions()
                        .dtype(groups[groups_of_[0][0]]->weights().scalar_type())
                        .device(model.parameters()[0].tensor.device());
  root_ = TrackTensor(ledger_, MemoryKind::kReserved, root_use_, [&] { return at::empty({root_elements}, like); });
}

std::vector<at::Tensor> Gatherer::Destinations(int unit) const {
  int64_t elements = 0;
  for (int g : groups_of_[unit]) elements += groups_[g]->layout().total;
  const at::ScalarType type = groups_[groups_of_[unit][0]]->weights().scalar_type();
  const at::Tensor whole = unit == 0 ? root_ : pool_.Memory(states_[unit].slot, type, elements);
  std::vector<at::Tensor> destinations;
  int64_t first = 0;
  for (int g : groups_of_[unit]) {
    destinations.push_back(whole.narrow(0, first, groups_[g]->layout().total));
    first += groups_[g]->layout().total;
  }
  return destinations;
}

at::Tensor Gatherer::ReshardedPart(const at::Tensor& whole) const {
  const int64_t part = whole.numel() / reshard_->world_size();
  return whole.narrow(0, reshard_->rank() * part, part);
}

absl::Status Gatherer::Start(int unit) {
  State& state = states_[unit];
  state.gathered = true;
  if (in_place_) return absl::OkStatus();
  state.event = BeginEvent(events_, EventKind::kGather, model_.units()[unit].name);
  if (unit == 0) {
    root_use_.SetKind(MemoryKind::kParameters);
  } else {
    ASSIGN_OR_RETURN(state.slot, pool_.AcquireForGather(&shard_));
  }
  const std::vector<at::Tensor> destinations = Destinations(unit);
  for (size_t i = 0; i < destinations.size(); ++i) {
    const FlatGroup& group = *groups_[groups_of_[unit][i]];
    if (shard_.world_size() == 1) {
      destinations[i].copy_(group.weights());
    } else {
      const at::Tensor own = group.weights_on_host() ? Stage(state, group) : group.weights();
      state.gathers.push_back(shard_.AllGather(destinations[i], own));
    }
  }
  return absl::OkStatus();
}

absl::Status Gatherer::StartRegather(int unit) {
  State& state = states_[unit];
  state.gathered = true;
  state.event = BeginEvent(events_, EventKind::kGather, model_.units()[unit].name);
  ASSIGN_OR_RETURN(state.slot, pool_.AcquireForGather(reshard_));
  const std::vector<at::Tensor> destinations = Destinations(unit);
  for (size_t i = 0; i < destinations.size(); ++i) {
    state.gathers.push_back(reshard_->AllGather(destinations[i], resharded_parts_[groups_of_[unit][i]]));
  }
  return absl::OkStatus();
}

at::Tensor Gatherer::Stage(State& state, const FlatGroup& group) {
  auto free = std::find_if(stagings_.begin(), stagings_.end(), [](const Staging& staging) { return !staging.busy; });
  if (free == stagings_.end()) {
    int64_t longest = 0;
    for (const auto& each : groups_) longest = std::max(longest, each->weights_on_host() ? each->layout().shard : 0);
    Staging staging;
    staging.memory = TrackTensor(ledger_, MemoryKind::kBuffers, staging.use,
                                 [&] { return shard_.NewBuffer(longest, group.weights().scalar_type()); });
    stagings_.push_back(std::move(staging));
    free = stagings_.end() - 1;
  }
  free->busy = true;
  state.stagings.push_back(static_cast<int>(free - stagings_.begin()));
  at::Tensor staged = free->memory.narrow(0, 0, group.layout().shard);
  staged.copy_(group.weights());
  return staged;
}

void Gatherer::Unstage(State& state) {
  for (int staging : state.stagings) stagings_[static_cast<size_t>(staging)].busy = false;
  state.stagings.clear();
}

absl::Status Gatherer::Wait(int unit) {
  State& state = states_[unit];
  if (in_place_) {
    for (int g : groups_of_[unit]) groups_[g]->Open(groups_[g]->weights());
    return absl::OkStatus();
  }
  for (int g : groups_of_[unit]) resharded_uses_[g].SetKind(MemoryKind::kReserved);
  absl::Status status;
  for (const auto& gather : state.gathers) status.Update(TimedWait(*gather, clock_, waited_s_, stream_waits_));
  state.gathers.clear();
  Unstage(state);
  EndEvent(events_, state.event);
  RETURN_IF_ERROR(status) << "while gathering unit " << model_.units()[unit].name;
  const std::vector<at::Tensor> destinations = Destinations(unit);
  for (size_t i = 0; i < destinations.size(); ++i) groups_[groups_of_[unit][i]]->Open(destinations[i]);
  return absl::OkStatus();
}

void Gatherer::Free(int unit) {
  State& state = states_[unit];
  for (int g : groups_of_[unit]) groups_[g]->Close();
  if (!in_place_) BeginEvent(events_, EventKind::kFree, model_.units()[unit].name);
  if (unit == 0) root_use_.SetKind(MemoryKind::kReserved);
  if (state.slot >= 0) pool_.Release(state.slot);
  Unstage(state);
  state = State();
}

void Gatherer::Reshard(int unit) {
  c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> destinations = Destinations(unit);
  for (size_t i = 0; i < destinations.size(); ++i) {
    const int group = groups_of_[unit][i];
    resharded_parts_[group].copy_(ReshardedPart(destinations[i]));
    resharded_uses_[group].SetKind(MemoryKind::kParameters);
  }
  Free(unit);
}

absl::Status Gatherer::FreeAll() {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (!states_[unit].gathered) continue;
    for (const auto& gather : states_[unit].gathers) RETURN_IF_ERROR(gather->Wait());
    Free(static_cast<int>(unit));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
