// Between the state of a strategy, of which a rank may hold only a part, and the bytes of a checkpoint, which holds
// whole tensors: parameters and both AdamW moments, under the parameters' names. So every layout loads what any other
// wrote. Belongs to the loop's thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard_writer.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"
#include "worker/saving/device_copies.h"
#include "worker/saving/save_task.h"

namespace trainyard {

// What the tensors of the state are, in the order of StateEntries.
std::vector<TensorHeader> StateHeaders(const DataParallel& strategy);

enum class StateRoles { kAll, kOptimizer, kNone };
// Local: adds a file with what this rank is to write of the state, if there is any, and what it is to witness. On a CPU
// the ranges are the state's own memory; of a GPU's they are `copies`. Keeps what is in `task`.
absl::Status AddOwnState(DataParallel& strategy, StateRoles roles, DeviceCopies& copies, SaveTask& task);

// Local: overwrites all tensors of the state, reading only what this rank holds. Possible errors: NotFound,
// FailedPrecondition when the checkpoint is of another model; DataLoss.
absl::Status LoadTensors(const Checkpoint& checkpoint, DataParallel& strategy);
// What is no tensor: once all ranks have loaded theirs.
void TakeCounters(const Manifest& manifest, DataParallel& strategy);
// Both.
absl::Status LoadState(const Checkpoint& checkpoint, DataParallel& strategy);

// Parameters alone, for sampling.
absl::Status LoadParametersFrom(const Checkpoint& checkpoint, Model& model);

// Initial weights of `train.model.init_from`, from a safetensors file; optimizer state in it is passed over. Possible
// errors: those of opening it, and of LoadParameters.
absl::Status InitializeFrom(const std::string& path, Model& model);

}  // namespace trainyard
