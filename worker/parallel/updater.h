// The update: the norm of the whole gradient, the decision of all ranks whether it is finite, clipping, AdamW over this
// rank's shards, and, where parameters are replicated, the all-gather that makes them whole again.
//
// Where each rank holds only a part of the gradient, its sum of squares and whether it is of use are added up over the
// world (in fp64). Where each holds all of it, each decides from the same bits and nothing is sent.
//
// Belongs to the loop's thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/collectives/communicator.h"
#include "worker/numerics/adamw.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/offload.h"

namespace trainyard {

class Updater {
 public:
  // `scatters`: as of Reducer. Nothing is owned.
  Updater(const std::vector<std::unique_ptr<FlatGroup>>& groups, const MeshCommunicators& communicators,
          const DataParallelOptions& options, bool scatters);

  // `seed`: what backward was seeded with. `rejected`: this rank's part is of no use. exposed_comm_s is the time waited
  // here. Possible errors: those of a Collective; Internal when the ranks are not in the same step.
  absl::StatusOr<StepOutput> Step(const StepInput& input, double seed, bool rejected);

  uint64_t num_updates() const { return optimizer_->num_steps(); }
  void set_num_updates(uint64_t num_updates) { optimizer_->set_num_steps(num_updates); }

 private:
  struct Agreed {
    double sum_of_squares = 0;
    bool rejected = false;
  };

  double LocalSumOfSquares() const;
  absl::StatusOr<Agreed> Agree(Agreed own, double& waited_s);
  absl::Status GatherParameters(double& waited_s);

  const std::vector<std::unique_ptr<FlatGroup>>& groups_;
  const MeshCommunicators communicators_;
  const double clip_norm_;
  const bool scatters_;
  EventLog* const events_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<TiledUpdate> tiled_;  // null: nothing lies in host memory
  uint64_t num_steps_ = 0;
};

}  // namespace trainyard
