// Sums the gradients of each group over all ranks. Per group:
//
//   written      each gradient is written into the group's accumulator (gradient_buffers.h) if it is the first one of a
//                reduction, and added to it otherwise: by the operation that computes it (GradientSink: Claim, Done),
//                or from autograd's own tensor (OnGradient)
//   started      replicated: an all-reduce, or (zero1) a reduce-scatter; sharded: a reduce-scatter
//   settled      the sum is in its place
//   replica sum  with dp_replicate above 1 the sum of a shard goes through an all-reduce over that axis
//
// [Note: order] All ranks start and wait for the same operations in the same order, whatever they have computed:
// buckets in their fixed order (Model::ReadyOrder), each once it is complete and all before it are started; units as
// the pass plan prescribes. The sum of a reduce-scatter exists only after its wait, so Settle(u) starts the
// all-reduce of u across replicas; Finish waits for these all-reduces after everything else.
//
// A step consists of rounds; in each of them, a data rank computes at most one micro-batch. A gradient that was written
// in an earlier round of the step is kept until the group's reduction starts, even if this rank has no micro-batch in
// later rounds. Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/gradient_buffers.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/slot_pool.h"

namespace trainyard {

class Reducer {
 public:
  // `pool` may be null where gradients are replicated. `groups_are_units` false: the groups are buckets. Owns nothing.
  Reducer(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
          const DataParallelOptions& options, const Precision& precision, SlotPool* pool, bool groups_are_units);

  // Whether this rank ends with the sums of its shard only, where there is more than one shard.
  bool scatters() const { return scatters_; }

  // Begins a round. `reduce`: its gradients are reduced, because it is the last round of the step or because every
  // round is reduced. `last`: it is the last round, after which sums of shards are also reduced across replicas.
  void BeginRound(bool reduce, bool last);
  // The gradient of `parameter` (of the model) in this round is complete. Fails with the errors of a Collective.
  absl::Status OnGradient(int parameter);
  // Returns where the gradient of `parameter` in this round must be written; Done must be called after that. Both fail
  // as OnGradient does.
  absl::StatusOr<GradientSink::Place> Claim(int parameter);
  absl::Status Done(int parameter);

  // Starts the reduction of a group; gradients that were not written are zero.
  absl::Status Start(int group_index);
  // Waits for the reduction of a group, then starts the all-reduce of its sum across replicas.
  absl::Status Settle(int group_index);
  // Starts the reductions of all groups that were not started in this round, in order.
  absl::Status StartAll();
  // Waits for everything under way.
  absl::Status Finish();

  // Makes the sum over all ranks not finite, so that all ranks skip the update. Has no effect where gradients are
  // scattered: there the ranks agree on the rejection in Updater::Step.
  void Reject() { rejected_ = true; }
  // Called after the update: the next gradient is the first one of a new step.
  void BeginStep();

  // Operations started in this step.
  uint64_t num_reductions() const { return num_reductions_; }
  double waited_s() const { return waited_s_; }

 private:
  struct State {
    std::vector<bool> written;  // by parameter of the group
    int num_missing = 0;        // parameters without a gradient in this round
    bool started = false;       // in this round
    std::shared_ptr<Collective> reduction = nullptr;
    int64_t event = -1;  // of the reduction under way, including the one across replicas
  };

  absl::Status StartCompleteBuckets();
  absl::Status StartReplicaSum(int group_index);
  void ZeroUnwritten(State& state, const FlatGroup& group, const at::Tensor& flat);
  void BeginReduce(int group_index);
  void EndReduce(int group_index);

  const Model& model_;
  const FlatGroups& groups_;
  const MeshCommunicators communicators_;
  const bool overlap_;
  const bool sharded_;  // gradients are sharded
  const bool scatters_;
  const bool groups_are_units_;
  int first_trained_group_ = 0;
  EventLog* const events_;
  Clock& clock_;
  StreamWaits* const stream_waits_;
  GradientBuffers buffers_;
  std::vector<int> group_of_, index_in_group_;  // by parameter of the model
  std::vector<State> states_;
  std::vector<int> unsettled_;  // groups whose reduction was started and not settled, in order
  struct ReplicaSum {
    int group_index;
    std::unique_ptr<Collective> operation;
  };
  std::vector<ReplicaSum> replica_sums_;

  bool reduce_ = false, last_ = false, rejected_ = false;
  size_t next_ = 0;  // the next group to start, where groups are buckets
  uint64_t num_reductions_ = 0;
  double waited_s_ = 0;
};

}  // namespace trainyard
