// The weights with which a job begins, if train.model.init_from names a folder of the Python library transformers. Each
// rank reads only the ranges of the files that it holds, as it does when it restores a checkpoint. Used by the loop's
// thread only.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/foreign_weights.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"
#include "worker/model/model.h"
#include "worker/parallel/parallel_state.h"

namespace trainyard {

// Whether `path` is a folder, but not that of a checkpoint.
bool IsModelFolder(const std::string& path);

// Collective. Opens the folder of train.model.init_from. Fails with InvalidArgument if its config.json or its weights
// are not of the model of the job, or if the ranks see different files, and with the errors of ForeignWeights::Open.
absl::StatusOr<std::unique_ptr<ForeignWeights>> OpenInitialWeights(const StartOrder& order, Communicator& world);

// Local. Overwrites the parameters of the state by the weights, and its moments by zeros.
absl::Status LoadInitialWeights(const ForeignWeights& weights, ParallelState& state);

}  // namespace trainyard
