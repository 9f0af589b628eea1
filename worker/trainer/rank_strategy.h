// How the settings of a job become the parts of one rank: the mesh, the rank's part of the model, its strategy and its
// executor, and the learning rates. Used by PrepareRank (rank.h) and the Trainer, on the loop's thread.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/link/config.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model.h"
#include "worker/model/tensor_group.h"
#include "worker/numerics/loss_scaler.h"
#include "worker/numerics/lr_schedule.h"
#include "worker/numerics/precision.h"
#include "worker/trainer/device.h"
#include "worker/trainer/rank.h"

namespace trainyard {

// Fails with InvalidArgument if the sizes of the job do not fit its number of ranks.
absl::StatusOr<Mesh> MeshOf(const StartOrder& order);

absl::StatusOr<Precision> PrecisionOf(const TrainConfig& config);

LossScaleConfig LossScalingOf(const TrainConfig& config);

LrSchedule LrScheduleOf(const TrainConfig& config);

// This rank's part of the model, without memory for its parameters, in the type of the master weights, which is also
// the type in checkpoints. `tensor_group` may be null for a model that runs no pass. Possible errors: those of
// DivideModel and Freeze.
absl::StatusOr<std::unique_ptr<Model>> MakePart(const StartOrder& order, const RankDevice& device,
                                                TensorGroup* tensor_group);

// Checks the host memory for all ranks of this host. All ranks must check before any rank allocates its part, so this
// is called before the ranks join their groups. Frozen parameters have no moments, and are whole on each rank unless
// the strategy shards parameters; the small ones that persist_elements keeps whole are counted as if sharded.
absl::Status CheckOffload(const StartOrder& order, const Model& model);

// Makes the strategy and the executor of `rank`, whose groups, channels, model and data exist, and deals it the
// micro-batches. `loads_state`: all parameters are loaded afterwards.
absl::Status MakeParallel(const StartOrder& order, bool loads_state, Rank& rank);

}  // namespace trainyard
