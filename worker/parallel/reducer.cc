#include "worker/parallel/reducer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/diagnostics/event_log.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {
namespace {

bool Scatters(const DataParallelOptions& options, const Communicator& shard) {
  if (shard.world_size() == 1) return false;
  return ShardingOf(options.strategy).gradients == Sharding::kSharded ||
         (options.strategy == Strategy::kZero1 && options.reduce_scatter);
}

}  // namespace

Reducer::Reducer(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                 const DataParallelOptions& options, const Precision& precision, SlotPool* pool, bool groups_are_units)
    : model_(model),
      groups_(groups),
      communicators_(communicators),
      overlap_(options.overlap),
      sharded_(ShardingOf(options.strategy).gradients == Sharding::kSharded),
      scatters_(Scatters(options, *communicators.shard)),
      groups_are_units_(groups_are_units),
      events_(options.events),
      clock_(*options.clock),
      stream_waits_(options.stream_waits),
      buffers_(groups, precision, {.sharded = sharded_, .scatters = scatters_, .groups_are_units = groups_are_units},
               pool, options.ledger),
      group_of_(model.parameters().size()),
      index_in_group_(model.parameters().size()),
      states_(groups.size()) {
  const size_t num_groups = groups.size();
  while (static_cast<size_t>(first_trained_group_) < num_groups && !groups[first_trained_group_]->trained()) {
    ++first_trained_group_;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    states_[g].written.resize(groups[g]->parameters().size());
    for (size_t i = 0; i < groups[g]->parameters().size(); ++i) {
      group_of_[groups[g]->parameters()[i]] = static_cast<int>(g);
      index_in_group_[groups[g]->parameters()[i]] = static_cast<int>(i);
    }
  }
}

void Reducer::BeginRound(bool reduce, bool last) {
  reduce_ = reduce;
  last_ = last;
  next_ = 0;
  for (size_t g = 0; g < states_.size(); ++g) {
    states_[g].num_missing = static_cast<int>(groups_[g]->parameters().size());
    states_[g].started = !groups_[g]->trained();  // a frozen group has nothing to reduce
  }
}

absl::Status Reducer::OnGradient(int parameter) {
  at::Tensor tensor = model_.parameters()[parameter].tensor;
  if (!tensor.grad().defined()) return absl::OkStatus();  // an operation wrote it into the sink
  ASSIGN_OR_RETURN(GradientSink::Place place, Claim(parameter));
  place.overwrites ? place.tensor.copy_(tensor.grad()) : place.tensor.add_(tensor.grad());
  tensor.mutable_grad().reset();
  return Done(parameter);
}

absl::StatusOr<GradientSink::Place> Reducer::Claim(int parameter) {
  const int group_index = group_of_[parameter], index_in_group = index_in_group_[parameter];
  State& state = states_[group_index];
  const FlatGroup& group = *groups_[group_index];
  if (state.started) {
    return absl::InternalError(absl::StrCat("the gradient of ", model_.parameters()[parameter].name,
                                            " arrived after the reduction of ", group.name(), " had started"));
  }
  ASSIGN_OR_RETURN(at::Tensor flat, buffers_.Accumulator(group_index, reduce_));
  const bool is_first = !state.written[index_in_group];
  state.written[index_in_group] = true;
  return GradientSink::Place{.tensor = group.View(flat, index_in_group), .overwrites = is_first};
}

absl::Status Reducer::Done(int parameter) {
  --states_[group_of_[parameter]].num_missing;
  return !groups_are_units_ && reduce_ && overlap_ ? StartCompleteBuckets() : absl::OkStatus();
}

absl::Status Reducer::StartCompleteBuckets() {
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

absl::Status Reducer::Start(int group_index) {
  State& state = states_[group_index];
  FlatGroup& group = *groups_[group_index];
  group.SetGradientsInUse(true);
  state.started = true;
  unsettled_.push_back(group_index);
  ASSIGN_OR_RETURN(at::Tensor flat, buffers_.Accumulator(group_index, reduce_));
  ZeroUnwritten(state, group, flat);
  // After Reject(): one NaN makes the gradient norm NaN on every rank, so that all ranks skip the update.
  // Where gradients are scattered, Updater::Step agrees on it instead.
  const bool makes_sum_invalid = rejected_ && !scatters_ && group_index == first_trained_group_;
  if (makes_sum_invalid) flat.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  if (sharded_ && group.layout().num_shards == 1) return absl::OkStatus();
  BeginReduce(group_index);
  ASSIGN_OR_RETURN(at::Tensor sent, buffers_.Send(group_index));
  if (scatters_) {
    state.reduction = communicators_.shard->ReduceScatterSum(buffers_.Receive(group_index), sent);
    buffers_.ReductionStarted(group_index, state.reduction, communicators_.shard);
  } else {
    state.reduction = communicators_.data->AllReduceSum(sent);
  }
  return absl::OkStatus();
}

void Reducer::ZeroUnwritten(State& state, const FlatGroup& group, const at::Tensor& flat) {
  for (size_t i = 0; i < state.written.size(); ++i) {
    if (!state.written[i]) group.View(flat, i).zero_();
  }
  group.ZeroGaps(flat);
  state.written.assign(state.written.size(), false);
}

absl::Status Reducer::Settle(int group_index) {
  State& state = states_[group_index];
  std::erase(unsettled_, group_index);
  if (state.reduction != nullptr) {
    RETURN_IF_ERROR(TimedWait(*state.reduction, clock_, waited_s_, stream_waits_))
        << "while reducing the gradients of " << groups_[group_index]->name();
  }
  buffers_.Settle(group_index, state.reduction);
  state.reduction = nullptr;
  const bool is_complete = !sharded_ && !scatters_;  // the all-reduce has added the replicas too
  if (is_complete || !last_ || communicators_.replicate->world_size() == 1) {
    EndReduce(group_index);
    return absl::OkStatus();
  }
  return StartReplicaSum(group_index);
}

absl::Status Reducer::StartReplicaSum(int group_index) {
  BeginReduce(group_index);
  replica_sums_.push_back({group_index, communicators_.replicate->AllReduceSum(buffers_.ReplicaSum(group_index))});
  return overlap_ ? absl::OkStatus() : TimedWait(*replica_sums_.back().operation, clock_, waited_s_, stream_waits_);
}

absl::Status Reducer::Finish() {
  while (!unsettled_.empty()) RETURN_IF_ERROR(Settle(unsettled_.front()));
  for (const auto& [group_index, operation] : replica_sums_) {
    RETURN_IF_ERROR(TimedWait(*operation, clock_, waited_s_, stream_waits_)) << "while reducing across replicas";
    EndReduce(group_index);
    buffers_.SettleReplicaSum(group_index);
  }
  replica_sums_.clear();
  return absl::OkStatus();
}

void Reducer::BeginReduce(int group_index) {
  State& state = states_[group_index];
  if (communicators_.data->world_size() > 1) ++num_reductions_;
  if (state.event < 0) state.event = BeginEvent(events_, EventKind::kReduce, groups_[group_index]->name());
}

void Reducer::EndReduce(int group_index) {
  EndEvent(events_, states_[group_index].event);
  states_[group_index].event = -1;
}

void Reducer::BeginStep() {
  rejected_ = false;
  num_reductions_ = 0;
  buffers_.BeginStep();
}

}  // namespace trainyard
