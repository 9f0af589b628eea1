#include "worker/parallel/reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/diagnostics/event_log.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Reducer::Reducer(const Model& model, const std::vector<std::unique_ptr<FlatGroup>>& groups,
                 const MeshCommunicators& communicators, const DataParallelOptions& options, const Precision& precision,
                 SlotPool* pool, bool units)
    : model_(model),
      groups_(groups),
      communicators_(communicators),
      overlap_(options.overlap),
      sharded_(ShardingOf(options.strategy).gradients == Sharding::kSharded),
      scatters_(communicators.shard->world_size() > 1 &&
                (sharded_ || (options.strategy == Strategy::kZero1 && options.reduce_scatter))),
      units_(units),
      events_(options.events),
      clock_(*options.clock),
      wire_type_(precision.reduce),
      casts_(AccumulatorType(precision) != precision.reduce),
      pool_(pool),
      ledger_(options.ledger),
      group_of_(model.parameters().size()),
      number_in_group_(model.parameters().size()),
      states_(groups.size()) {
  while (!groups[first_trained_]->trained()) ++first_trained_;
  for (size_t g = 0; g < groups.size(); ++g) {
    states_[g].written.resize(groups[g]->parameters().size());
    for (size_t i = 0; i < groups[g]->parameters().size(); ++i) {
      group_of_[groups[g]->parameters()[i]] = static_cast<int>(g);
      number_in_group_[groups[g]->parameters()[i]] = static_cast<int>(i);
    }
  }
}

void Reducer::BeginRound(bool reduce, bool last) {
  reduce_ = reduce;
  last_ = last;
  next_ = 0;
  for (size_t g = 0; g < states_.size(); ++g) {
    states_[g].num_missing = static_cast<int>(groups_[g]->parameters().size());
    states_[g].started = !groups_[g]->trained();  // there is nothing to reduce
  }
}

absl::Status Reducer::OnGradient(int parameter) {
  at::Tensor tensor = model_.parameters()[parameter].tensor;
  if (!tensor.grad().defined()) return absl::OkStatus();  // it went through the sink
  ASSIGN_OR_RETURN(GradientSink::Place place, Claim(parameter));
  place.first ? place.tensor.copy_(tensor.grad()) : place.tensor.add_(tensor.grad());
  tensor.mutable_grad().reset();
  return Done(parameter);
}

absl::StatusOr<GradientSink::Place> Reducer::Claim(int parameter) {
  const int number = group_of_[parameter], in_group = number_in_group_[parameter];
  State& state = states_[number];
  const FlatGroup& group = *groups_[number];
  if (state.started) {
    return absl::InternalError(absl::StrCat("the gradient of ", model_.parameters()[parameter].name,
                                            " came after those of ", group.name(), " were reduced"));
  }
  if (!state.flat.defined()) {
    RETURN_IF_ERROR(Acquire(state, number));
  }
  const bool first = !state.written[in_group];
  state.written[in_group] = true;
  return GradientSink::Place{.tensor = group.View(state.flat, in_group), .first = first};
}

absl::Status Reducer::Done(int parameter) {
  --states_[group_of_[parameter]].num_missing;
  return !units_ && reduce_ && overlap_ ? StartComplete() : absl::OkStatus();
}

absl::Status Reducer::Acquire(State& state, int number) {
  FlatGroup& group = *groups_[number];
  const bool alone = group.layout().num_shards == 1;
  if (!sharded_) {
    state.flat = group.whole_gradients();
  } else if (alone && !state.has_sum) {
    group.HoldGradients(true);
    state.flat = group.gradient_shard();  // the sum over a group of one
  } else if (!alone && reduce_) {
    ASSIGN_OR_RETURN(state.flat, WireMemory(state, number));
  } else {
    state.flat = OwnMemory(group, state.own, state.own_use, group.gradient_shard().scalar_type());
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Reducer::WireMemory(State& state, int number) {
  const FlatGroup& group = *groups_[number];
  if (UsesSlot(group)) {
    ASSIGN_OR_RETURN(state.slot, pool_->AcquireForCompute());
    return pool_->Memory(state.slot, wire_type_, group.layout().total);
  }
  return casts_ ? OwnMemory(group, state.own_wire, state.own_wire_use, wire_type_)
                : OwnMemory(group, state.own, state.own_use, wire_type_);
}

const at::Tensor& Reducer::OwnMemory(const FlatGroup& group, at::Tensor& memory, TrackedMemory& use,
                                     at::ScalarType type) {
  if (!memory.defined()) {
    memory = TrackTensor(ledger_, MemoryKind::kGradients, use, [&] {
      return at::empty({group.layout().total}, group.gradient_shard().options().dtype(type));
    });
  }
  use.SetKind(MemoryKind::kGradients);
  return memory;
}

const at::Tensor& Reducer::Received(State& state, const FlatGroup& group) {
  if (!state.received.defined()) {
    state.received = TrackTensor(ledger_, MemoryKind::kBuffers, state.received_use,
                                 [&] { return at::empty_like(group.gradient_shard(), wire_type_); });
  }
  return state.received;
}

void Reducer::ZeroUnwritten(State& state, const FlatGroup& group) {
  for (size_t i = 0; i < state.written.size(); ++i) {
    if (!state.written[i]) group.View(state.flat, i).zero_();
  }
  group.ZeroGaps(state.flat);
  state.written.assign(state.written.size(), false);
}

// One element that is not a number makes the sum of all ranks none.
void Reducer::Spoil(const at::Tensor& flat) {
  if (rejected_ && !scatters_) flat.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
}

void Reducer::BeginReduce(int number) {
  State& state = states_[number];
  if (communicators_.data->world_size() > 1) ++num_reductions_;
  if (state.event < 0) state.event = BeginEvent(events_, EventKind::kReduce, groups_[number]->name());
}

void Reducer::EndReduce(int number) {
  EndEvent(events_, states_[number].event);
  states_[number].event = -1;
}

absl::Status Reducer::Start(int number) {
  State& state = states_[number];
  FlatGroup& group = *groups_[number];
  group.HoldGradients(true);
  state.started = true;
  in_order_.push_back(number);
  if (!state.flat.defined()) {
    RETURN_IF_ERROR(Acquire(state, number));
  }
  ZeroUnwritten(state, group);
  if (number == first_trained_) Spoil(state.flat);
  if (sharded_ && group.layout().num_shards == 1) return absl::OkStatus();
  BeginReduce(number);
  state.sent = state.flat;
  if (state.flat.scalar_type() != wire_type_) {
    ASSIGN_OR_RETURN(state.sent, WireMemory(state, number));
    state.sent.copy_(state.flat);
  }
  if (scatters_) return StartScattering(state, group);
  state.reduction = communicators_.data->AllReduceSum(state.sent);
  return absl::OkStatus();
}

absl::Status Reducer::StartScattering(State& state, const FlatGroup& group) {
  const bool in_place = !state.has_sum && !casts_;
  state.reduction =
      communicators_.shard->ReduceScatterSum(in_place ? group.gradient_shard() : Received(state, group), state.sent);
  if (state.slot >= 0) pool_->Release(state.slot, state.reduction, communicators_.shard);
  state.slot = -1;
  return absl::OkStatus();
}

absl::Status Reducer::Settle(int number) {
  State& state = states_[number];
  const FlatGroup& group = *groups_[number];
  std::erase(in_order_, number);
  if (state.reduction != nullptr) {
    RETURN_IF_ERROR(TimedWait(*state.reduction, clock_, waited_s_))
        << "while reducing the gradients of " << group.name();
    if (pool_ != nullptr) pool_->Settled(state.reduction);
    state.reduction = nullptr;
  }
  const at::Tensor& sum = group.gradient_shard();
  if (!sharded_ && !scatters_) {
    if (casts_) group.whole_gradients().copy_(state.sent);
  } else if (state.has_sum) {
    sum.add_(group.layout().num_shards > 1 ? state.received : state.flat);
  } else if (casts_ && group.layout().num_shards > 1) {
    sum.copy_(state.received);
  }
  state.has_sum = sharded_;
  state.flat = state.sent = at::Tensor();
  state.own_use.SetKind(MemoryKind::kReserved);
  state.own_wire_use.SetKind(MemoryKind::kReserved);
  const bool complete = !sharded_ && !scatters_;  // the world's sum is there already
  if (complete || !last_ || communicators_.replicate->world_size() == 1) {
    EndReduce(number);
    return absl::OkStatus();
  }
  return StartAcross(number);
}

absl::Status Reducer::StartAcross(int number) {
  State& state = states_[number];
  BeginReduce(number);
  const at::Tensor& sum = groups_[number]->gradient_shard();
  if (casts_) Received(state, *groups_[number]).copy_(sum);
  across_.push_back({number, communicators_.replicate->AllReduceSum(casts_ ? state.received : sum)});
  return overlap_ ? absl::OkStatus() : TimedWait(*across_.back().operation, clock_, waited_s_);
}

absl::Status Reducer::StartComplete() {
  while (next_ < states_.size() && groups_[next_]->trained() && states_[next_].num_missing == 0) {
    RETURN_IF_ERROR(Start(static_cast<int>(next_++)));
  }
  return absl::OkStatus();
}

absl::Status Reducer::StartAll() {
  for (; next_ < states_.size(); ++next_) {
    if (!states_[next_].started) {
      RETURN_IF_ERROR(Start(static_cast<int>(next_)));
    }
  }
  return absl::OkStatus();
}

absl::Status Reducer::Finish() {
  while (!in_order_.empty()) RETURN_IF_ERROR(Settle(in_order_.front()));
  for (const auto& [group, operation] : across_) {
    RETURN_IF_ERROR(TimedWait(*operation, clock_, waited_s_)) << "while reducing across replicas";
    EndReduce(group);
    if (casts_) groups_[group]->gradient_shard().copy_(states_[group].received);
  }
  across_.clear();
  return absl::OkStatus();
}

void Reducer::BeginStep() {
  rejected_ = false;
  num_reductions_ = 0;
  for (size_t g = 0; g < states_.size(); ++g) {
    states_[g].has_sum = false;
    groups_[g]->HoldGradients(false);
  }
}

}  // namespace trainyard
