// The update: the norm of the whole gradient, the decision of all ranks whether it is finite, clipping, AdamW over this
// rank's shards, and, where parameters are replicated, the all-gather that makes them whole again.
//
// Where each rank holds only a part of the gradient, its sum of squares and whether it is of use are added up over the
// world (in fp64). Where each holds all of it, each decides from the same bits and nothing is sent.
//
// Those all-gathers may still be on their way when a step is over: whoever looks at parameters waits for them first.
//
// Belongs to the loop's thread.
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
  // `scatters`: as of Reducer. Nothing is owned.
  Updater(const FlatGroups& groups, const MeshCommunicators& communicators, const DataParallelOptions& options,
          const UpdateOptions& update, bool scatters);

  // `seed`: what backward was seeded with. `rejected`: this rank's part is of no use. exposed_comm_s is left to
  // the caller. Possible errors: those of a Collective; Internal when the ranks are not in the same step.
  absl::StatusOr<StepOutput> Step(const StepInput& input, double seed, bool rejected);

  // Until all parameters are those of the last step. Possible errors: those of a Collective.
  absl::Status AwaitParameters();
  double waited_s() const { return waited_s_; }

  uint64_t num_updates() const { return optimizer_->num_steps(); }
  void set_num_updates(uint64_t num_updates) { optimizer_->set_num_steps(num_updates); }

 private:
  struct Agreed {
    double sum_of_squares = 0;
    bool rejected = false;
  };

  double LocalSumOfSquares() const;
  absl::StatusOr<Agreed> Agree(Agreed own);
  absl::Status StartGathers();
  absl::Status AwaitOldest();

  const FlatGroups& groups_;
  const MeshCommunicators communicators_;
  const double clip_norm_;
  const bool overlap_, all_gather_;
  const int64_t gather_elements_;  // at once
  const bool scatters_;
  EventLog* const events_;
  Clock& clock_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<TiledUpdate> tiled_;  // null: nothing lies in host memory
  uint64_t num_steps_ = 0;
  struct Gather {
    std::vector<std::unique_ptr<Collective>> operations;
    int64_t elements = 0;
    int64_t event = -1;
  };
  std::deque<Gather> gathers_;  // on their way
  int64_t num_gathering_ = 0;   // elements
  double waited_s_ = 0;
};

}  // namespace trainyard
