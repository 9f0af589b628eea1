#include "worker/parallel/gradient_buffers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "common/status_macros.h"

namespace trainyard {

GradientBuffers::GradientBuffers(const FlatGroups& groups, const Precision& precision, const Options& options,
                                 SlotPool* pool, Ledger* ledger)
    : groups_(groups),
      options_(options),
      wire_type_(precision.reduce),
      casts_(AccumulatorType(precision) != precision.reduce),
      pool_(pool),
      ledger_(ledger),
      buffers_(groups.size()) {}

absl::StatusOr<at::Tensor> GradientBuffers::Accumulator(int number, bool reduces) {
  Buffers& buffers = buffers_[number];
  if (buffers.flat.defined()) return buffers.flat;
  FlatGroup& group = *groups_[number];
  const bool is_single_shard = group.layout().num_shards == 1;
  if (!options_.sharded) {
    buffers.flat = group.whole_gradients();
  } else if (is_single_shard && !buffers.has_sum) {
    group.SetGradientsInUse(true);
    buffers.flat = group.gradient_shard();  // with one shard, nothing is sent: this is the sum
  } else if (!is_single_shard && reduces) {
    ASSIGN_OR_RETURN(buffers.flat, WireMemory(number));
  } else {
    buffers.flat = OwnMemory(group, buffers.own, buffers.own_use, group.gradient_shard().scalar_type());
  }
  return buffers.flat;
}

// Returns flat memory of the group's length for the gradients that are sent.
absl::StatusOr<at::Tensor> GradientBuffers::WireMemory(int number) {
  Buffers& buffers = buffers_[number];
  const FlatGroup& group = *groups_[number];
  if (UsesSlot(group)) {
    ASSIGN_OR_RETURN(buffers.slot, pool_->AcquireForCompute());
    return pool_->Memory(buffers.slot, wire_type_, group.layout().total);
  }
  return casts_ ? OwnMemory(group, buffers.own_wire, buffers.own_wire_use, wire_type_)
                : OwnMemory(group, buffers.own, buffers.own_use, wire_type_);
}

const at::Tensor& GradientBuffers::OwnMemory(const FlatGroup& group, at::Tensor& memory, TrackedMemory& use,
                                             at::ScalarType type) {
  if (!memory.defined()) {
    memory = TrackTensor(ledger_, MemoryKind::kGradients, use, [&] {
      return at::empty({group.layout().total}, group.gradient_shard().options().dtype(type));
    });
  }
  use.SetKind(MemoryKind::kGradients);
  return memory;
}

const at::Tensor& GradientBuffers::Received(int number) {
  Buffers& buffers = buffers_[number];
  if (!buffers.received.defined()) {
    buffers.received = TrackTensor(ledger_, MemoryKind::kBuffers, buffers.received_use,
                                   [&] { return at::empty_like(groups_[number]->gradient_shard(), wire_type_); });
  }
  return buffers.received;
}

absl::StatusOr<at::Tensor> GradientBuffers::Send(int number) {
  Buffers& buffers = buffers_[number];
  buffers.sent = buffers.flat;
  if (buffers.flat.scalar_type() != wire_type_) {
    ASSIGN_OR_RETURN(buffers.sent, WireMemory(number));
    buffers.sent.copy_(buffers.flat);
  }
  return buffers.sent;
}

const at::Tensor& GradientBuffers::Receive(int number) {
  const bool in_place = !buffers_[number].has_sum && !casts_;
  return in_place ? groups_[number]->gradient_shard() : Received(number);
}

void GradientBuffers::ReductionStarted(int number, const std::shared_ptr<Collective>& reduction,
                                       const Communicator* communicator) {
  Buffers& buffers = buffers_[number];
  if (buffers.slot >= 0) pool_->Release(buffers.slot, reduction, communicator);
  buffers.slot = -1;
}

void GradientBuffers::Settle(int number, const std::shared_ptr<Collective>& reduction) {
  Buffers& buffers = buffers_[number];
  const FlatGroup& group = *groups_[number];
  if (reduction != nullptr && pool_ != nullptr) pool_->Settled(reduction);
  const at::Tensor& sum = group.gradient_shard();
  const bool is_single_shard = group.layout().num_shards == 1;
  if (!options_.sharded && !options_.scatters) {
    if (casts_) group.whole_gradients().copy_(buffers.sent);
  } else if (buffers.has_sum) {
    sum.add_(is_single_shard ? buffers.flat : buffers.received);
  } else if (casts_ && !is_single_shard) {
    sum.copy_(buffers.received);
  }
  buffers.has_sum = options_.sharded;
  buffers.flat = buffers.sent = at::Tensor();
  buffers.own_use.SetKind(MemoryKind::kReserved);
  buffers.own_wire_use.SetKind(MemoryKind::kReserved);
}

const at::Tensor& GradientBuffers::ReplicaSum(int number) {
  const at::Tensor& sum = groups_[number]->gradient_shard();
  if (!casts_) return sum;
  Received(number).copy_(sum);
  return buffers_[number].received;
}

void GradientBuffers::SettleReplicaSum(int number) {
  if (casts_) groups_[number]->gradient_shard().copy_(buffers_[number].received);
}

void GradientBuffers::BeginStep() {
  for (size_t g = 0; g < buffers_.size(); ++g) {
    buffers_[g].has_sum = false;
    groups_[g]->SetGradientsInUse(false);
  }
}

}  // namespace trainyard
