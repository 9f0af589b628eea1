// Between the state of a strategy, of which a rank may hold only a part, and the bytes of a checkpoint, which holds
// whole tensors: parameters and both AdamW moments, under the parameters' names. So every layout loads what any other
// wrote. Belongs to the loop's thread.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/writer.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

// What rank 0 does with the state: the tensors' headers, and a stream of their bytes that it may read once.
using StateWriter = absl::FunctionRef<absl::StatusOr<SavedCheckpoint>(const std::vector<TensorHeader>&, TensorStream)>;

// Collective: rank 0 writes, every other rank calls JoinSave at the same time. What became of the checkpoint is
// `saved`; the status is that of the ranks' communication. Whatever `write` does, all gathers are made: a disk that is
// full must not leave the others waiting.
absl::Status SaveState(DataParallel& strategy, StateWriter write, absl::StatusOr<SavedCheckpoint>& saved);
absl::Status JoinSave(DataParallel& strategy);

// Local: overwrites the state, reading only what this rank holds. Possible errors: NotFound, FailedPrecondition when
// the checkpoint is of another model; DataLoss.
absl::Status LoadState(const Checkpoint& checkpoint, DataParallel& strategy);

// Parameters alone, for sampling.
absl::Status LoadParametersFrom(const Checkpoint& checkpoint, Model& model);

// Initial weights of `train.model.init_from`, from a safetensors file; optimizer state in it is passed over. Possible
// errors: those of opening it, and of LoadParameters.
absl::Status InitializeFrom(const std::string& path, Model& model);

}  // namespace trainyard
