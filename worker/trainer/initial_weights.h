// The weights with which a job begins: those of train.model.init_from or random ones, and the adapters of
// train.lora.path or random ones. If init_from is a folder of the Python library transformers, each rank reads from the
// files only the ranges that it holds, as it does when it restores a checkpoint. Used by the loop's thread only.
//
//   PrepareInitialWeights ▶ the strategy is created ▶ LoadInitialWeights, if a folder was opened
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/foreign_weights.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"
#include "worker/model/model.h"
#include "worker/parallel/parallel_state.h"
#include "worker/trainer/sizes_of_spec.h"

namespace trainyard {

// Collective. Sets the initial values of `model`, which has no memory yet. If train.model.init_from is a folder of
// transformers, only the initial values of adapters are set, and the folder is returned; otherwise null. Fails with
// InvalidArgument if the files are not of the model of the job, if the ranks see different files, or if a checkpoint
// has adapters that were trained with other settings than train.lora's; and with the errors of ForeignWeights::Open,
// AdapterWeights::Open and InitializeFrom.
absl::StatusOr<std::unique_ptr<ForeignWeights>> PrepareInitialWeights(const StartOrder& order,
                                                                      const SizesOfSpec& sizes_of_spec,
                                                                      Communicator& world, Model& model);

// Not collective. Overwrites the parameters of the state with the weights and the initial adapters of `model`.
// REQUIRES: no step was made, so the moments are zero.
absl::Status LoadInitialWeights(const ForeignWeights& weights, const Model& model, ParallelState& state);

}  // namespace trainyard
