// Gradients on their way to their sum over all ranks. Per group:
//
//   all          each gradient is written into a flat buffer when it is the first of a reduction, and added to after:
//   by the
//                operation that makes it (GradientSink: Claim, Done), or taken over from autograd (OnGradient)
//   replicated   into the whole flat gradient; once complete: all-reduce, or (zero1) a reduce-scatter in place
//   sharded      into a slot, or memory of its own where gradients are kept over several rounds; once complete:
//                reduce-scatter into this rank's shard
//   16 bits      sums are made in fp32 (AccumulatorType); what is sent is cast to precision.reduce and back
//   and across   with dp_replicate above 1 a shard's sum goes through an all-reduce over that axis
//
// [Note: order] All ranks start and wait for the same operations in the same order, whatever they have computed:
// buckets in their fixed order (Model::ReadyOrder), each once complete and its turn come; units as the
// schedule says. A reduce-scatter's sum is there only after its wait, so Settle(u) is what starts u's all-reduce
// across; those are waited for in Finish, after all else.
//
// Marks of what is written live from one reduction to the next: a rank that fills up with Shadow keeps what it
// computed. Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/slot_pool.h"

namespace trainyard {

class Reducer {
 public:
  // `pool` may be null where gradients are replicated. `units`: groups come and go with units, and the root and what
  // belongs to none is never in a slot. Nothing is owned.
  Reducer(const Model& model, const std::vector<std::unique_ptr<FlatGroup>>& groups,
          const MeshCommunicators& communicators, const DataParallelOptions& options, const Precision& precision,
          SlotPool* pool, bool units);

  // Whether this rank ends with its shard of the sums only, where there is more than one.
  bool scatters() const { return scatters_; }

  // Of a round; `reduce`: its gradients complete those of the step, or are reduced every round.
  void BeginRound(bool reduce, bool last);
  // The gradient of `parameter` (of the model) in this round is complete. Possible errors: those of a Collective.
  absl::Status OnGradient(int parameter);
  // Where the gradient of `parameter` in this round is to be written, and after that. Possible errors: as of
  // OnGradient.
  absl::StatusOr<GradientSink::Place> Claim(int parameter);
  absl::Status Done(int parameter);

  // Starts the reduction of a group; what was not written is zero.
  absl::Status Start(int group);
  // Waits for it, and goes on with the all-reduce across.
  absl::Status Settle(int group);
  // Starts those of all groups that were not started in this round, in order.
  absl::Status StartAll();
  // Waits for all that is on its way.
  absl::Status Finish();

  // This rank's part of the step counts for nothing: spoils the sum of all. For ranks that do not agree otherwise.
  void Reject() { rejected_ = true; }
  // After the update: the next gradient is the first one.
  void BeginStep();

  // Operations started in this step.
  uint64_t num_reductions() const { return num_reductions_; }
  double waited_s() const { return waited_s_; }

 private:
  struct State {
    std::vector<bool> written;  // taken over: by parameter of the group
    int num_missing = 0;        // parameters without a gradient in this round
    bool started = false;       // in this round
    bool has_sum = false;       // sharded: an earlier round's sum is in the shard
    at::Tensor flat = {};       // where gradients are taken over to; undefined until the first one
    int slot = -1;              // of what is sent, if any
    TrackedMemory own_use = {}, own_wire_use = {}, received_use = {};
    at::Tensor own = {};       // memory for whole gradients that stay for several rounds, once it was needed
    at::Tensor own_wire = {};  // memory for what is sent, where it can be no slot
    at::Tensor sent = {};      // what a reduction under way reads
    at::Tensor received = {};  // memory for this rank's sum, where it cannot go straight into its place
    std::shared_ptr<Collective> reduction = nullptr;
    int64_t event = -1;  // of the reduction under way, across replicas too
  };

  absl::Status Acquire(State& state, int number);
  bool UsesSlot(const FlatGroup& group) const { return sharded_ && (!units_ || group.unit() > 0); }
  // Flat memory as long as group `number` for what is sent: a slot, or the group's own.
  absl::StatusOr<at::Tensor> WireMemory(State& state, int number);
  // `memory`, made when it is first needed; in use until the reduction is settled.
  const at::Tensor& OwnMemory(const FlatGroup& group, at::Tensor& memory, TrackedMemory& use, at::ScalarType type);
  const at::Tensor& Received(State& state, const FlatGroup& group);
  absl::Status StartScattering(State& state, const FlatGroup& group);
  absl::Status StartAcross(int number);
  absl::Status StartComplete();
  void ZeroUnwritten(State& state, const FlatGroup& group);
  void Spoil(const at::Tensor& flat);
  void BeginReduce(int number);
  void EndReduce(int number);

  const Model& model_;
  const std::vector<std::unique_ptr<FlatGroup>>& groups_;
  const MeshCommunicators communicators_;
  const bool overlap_;
  const bool sharded_;  // gradients
  const bool scatters_;
  const bool units_;
  int first_trained_ = 0;
  EventLog* const events_;
  Clock& clock_;
  const at::ScalarType wire_type_;
  const bool casts_;  // what is sent is of another type than what is added up
  SlotPool* const pool_;
  Ledger* const ledger_;
  std::vector<int> group_of_, number_in_group_;  // by parameter of the model
  std::vector<State> states_;
  std::vector<int> in_order_;  // started, not settled
  struct Across {
    int group;
    std::unique_ptr<Collective> operation;
  };
  std::vector<Across> across_;

  bool reduce_ = false, last_ = false, rejected_ = false;
  size_t next_ = 0;  // group whose turn it is, where groups are buckets
  uint64_t num_reductions_ = 0;
  double waited_s_ = 0;
};

}  // namespace trainyard
