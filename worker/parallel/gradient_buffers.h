// Where the gradients of each group are stored while they are on the way to their sum over all ranks. A round is one
// micro-batch of each rank; a step has one or more rounds, and each group is reduced now, in this round, or in a later
// one. A slot is memory of the SlotPool, which groups share.
//
//                           added up and sent in        the sum is received in
//   replicated              the whole flat gradient     the same place; zero1: this rank's part of it
//   sharded, reduced now    a slot, or own memory       this rank's shard; from the second reduction of a step on: own
//                                                       memory, which is then added to the shard
//   sharded, reduced later  own memory                  as above
//   sharded, one shard      this rank's shard           nothing is sent
//
// If precision.reduce has 16 bits, gradients are added up in fp32 (AccumulatorType), a copy in precision.reduce is
// sent, and the received sum is cast back. The exception is a sharded group that is reduced in the round of its first
// gradients: these are written in precision.reduce, into the memory that is sent. A group's own memory is allocated
// when it is first needed and never freed.
//
// Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/ledger.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/slot_pool.h"

namespace trainyard {

class GradientBuffers {
 public:
  struct Options {
    bool sharded = false;           // gradients are sharded
    bool scatters = false;          // this rank receives only the sum of its shard
    bool groups_are_units = false;  // the root and groups without a unit never use a slot
  };
  // `pool` may be null if gradients are replicated; `ledger` may always be null. Neither is owned.
  GradientBuffers(const FlatGroups& groups, const Precision& precision, const Options& options, SlotPool* pool,
                  Ledger* ledger);

  // Flat memory for the gradients of `group` in this round; acquired at the first call of a round. `reduces`: this
  // round ends with a reduction. Fails with the errors of an operation that still uses a slot.
  absl::StatusOr<at::Tensor> Accumulator(int group, bool reduces);

  // What the reduction of `group` sends. REQUIRES: Accumulator was called in this round.
  absl::StatusOr<at::Tensor> Send(int group);
  // Where a reduce-scatter writes.
  const at::Tensor& Receive(int group);
  // `reduction`, an operation of `communicator`, reads what Send returned.
  void ReductionStarted(int group, const std::shared_ptr<Collective>& reduction, const Communicator* communicator);

  // Adds what was received to the sum of earlier rounds, or casts it, and ends the round. `reduction` may be null.
  void Settle(int group, const std::shared_ptr<Collective>& reduction);

  // Returns what an all-reduce across replicas must sum in place; SettleReplicaSum stores its result in the shard.
  const at::Tensor& ReplicaSum(int group);
  void SettleReplicaSum(int group);

  // Called after the update: the sums of the step's rounds are no longer needed.
  void BeginStep();

 private:
  struct Buffers {
    bool has_sum = false;      // sharded: the sum of an earlier round is in the shard
    at::Tensor flat = {};      // the accumulator of this round; undefined before the first gradient
    at::Tensor sent = {};      // read by the reduction under way
    int slot = -1;             // of what is sent; -1: none
    at::Tensor own = {};       // memory for whole gradients that stay for several rounds, or may not use a slot
    at::Tensor own_wire = {};  // memory for what is sent where no slot may be used
    at::Tensor received = {};  // memory for this rank's sum if it must be cast, or added to the shard
    TrackedMemory own_use = {}, own_wire_use = {}, received_use = {};
  };

  bool UsesSlot(const FlatGroup& group) const {
    return options_.sharded && (!options_.groups_are_units || group.unit() > 0);
  }
  absl::StatusOr<at::Tensor> WireMemory(int group);
  const at::Tensor& OwnMemory(const FlatGroup& group, at::Tensor& memory, TrackedMemory& use, at::ScalarType type);
  const at::Tensor& Received(int group);

  const FlatGroups& groups_;
  const Options options_;
  const at::ScalarType wire_type_;
  const bool casts_;  // gradients are sent in another type than they are added up in
  SlotPool* const pool_;
  Ledger* const ledger_;
  std::vector<Buffers> buffers_;
};

}  // namespace trainyard
