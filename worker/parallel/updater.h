// Updates the parameters at the end of a step: computes the norm of the whole gradient, lets all ranks decide whether
// it is finite, clips, runs AdamW over this rank's shards, and, where parameters are replicated, gathers the updated
// shards on every rank.
//
// Where each rank holds only a part of the gradient, because strategy, stages or tensor ranks divide it, the ranks of
// the job add up the sums of squares (in fp64) and the number of parts that must be rejected. Each element is counted
// once. Where each rank holds the whole gradient, each decides from the same bits and nothing is sent.
//
// The gathers may still run when Step returns, so call AwaitParameters before the parameters are read.
//
// Not thread-safe: used on the thread of the training loop only.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/numerics/adamw.h"
#include "worker/parallel/data_parallel_options.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/offload.h"
#include "worker/parallel/update.h"

namespace trainyard {

class Updater {
 public:
  // `scatters`: this rank has the sums of the gradients of its shard only (Reducer::scatters). Owns nothing that the
  // arguments refer to.
  Updater(const FlatGroups& groups, const MeshCommunicators& communicators, const DataParallelOptions& options,
          const UpdateOptions& update, bool scatters);

  // Called when the gradients are final. On a GPU, queues the computation of their norm, for which Step waits.
  void StartNorm();

  // `seed`: the factor with which backward was started (ComputeGradientScale). `rejected`: this rank's part of the
  // gradient must not be used, so all ranks skip the update. Sets gradient_norm and skipped; the caller sets the other
  // fields. Fails with the errors of a Collective, and with Internal if the ranks are not in the same step.
  absl::StatusOr<StepOutput> Step(const StepInput& input, double seed, bool rejected);

  // Whether the ranks add up their parts of the norm and their rejections.
  bool agrees() const { return agrees_; }

  // Waits until all parameters have the values of the last step. Fails with the errors of a Collective.
  absl::Status AwaitParameters();
  double waited_s() const { return waited_s_; }

  uint64_t num_updates() const { return optimizer_->num_steps(); }
  void set_num_updates(uint64_t num_updates) { optimizer_->set_num_steps(num_updates); }

 private:
  struct AgreedNorm {
    double sum_of_squares = 0;
    bool rejected = false;
  };

  // Returns the gradients that this rank counts in the norm.
  std::vector<at::Tensor> CountedGradients() const;
  double LocalSumOfSquares();
  absl::StatusOr<AgreedNorm> AgreeOnNorm(AgreedNorm own);
  absl::Status StartGathers();
  absl::Status AwaitOldest();

  const FlatGroups& groups_;
  const MeshCommunicators communicators_;
  const double clip_norm_;
  const bool overlap_, all_gather_;
  const int64_t gather_elements_;  // elements that are gathered at a time
  const bool scatters_, agrees_;
  EventLog* const events_;
  Clock& clock_;
  StreamWaits* const stream_waits_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<TiledUpdate> tiled_;  // null: nothing is in host memory
  at::Tensor queued_norm_;              // of this step; undefined on a CPU
  uint64_t num_steps_ = 0;
  struct Gather {
    std::vector<std::unique_ptr<Collective>> operations;
    int64_t elements = 0;
    int64_t event = -1;
  };
  std::deque<Gather> gathers_;  // under way
  int64_t num_gathering_ = 0;   // elements
  double waited_s_ = 0;
};

}  // namespace trainyard
