// Converts between the state of a strategy, of which a rank may hold only a part, and the bytes of a checkpoint, which
// holds pieces of whole tensors: parameters and both AdamW moments, under the parameters' names. Every layout can
// therefore load what any other layout wrote. Used by the loop's thread only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard_writer.h"
#include "worker/model/model.h"
#include "worker/parallel/parallel_state.h"
#include "worker/saving/device_copies.h"
#include "worker/saving/save_task.h"

namespace trainyard {

// The name of a type in safetensors: "F32". Empty: it has none.
const char* DtypeOf(at::ScalarType type);

// The headers of the whole tensors that the entries belong to, each once, in the order of the entries.
std::vector<TensorHeader> StateHeaders(const std::vector<StateEntry>& entries);

enum class StateRoles { kAll, kOptimizer, kNone };
// Local. Adds a file with this rank's ranges of the state, if it has any, and the ranges it must witness, that is, hash
// although another rank writes them (save_task.h). On a CPU the ranges point to the state's own memory; on a GPU they
// point to `copies`. Keeps what `task` contains already.
absl::Status AddOwnState(ParallelState& state, StateRoles roles, DeviceCopies& copies, SaveTask& task);

// Local. Overwrites all tensors of the state; reads only what this rank holds. Possible errors: NotFound;
// FailedPrecondition if the checkpoint is of another model; DataLoss.
absl::Status LoadTensors(const Checkpoint& checkpoint, ParallelState& state);
// Restores the counters in the manifest: optimizer updates and, if `restores_loss_scale`, the loss scale. Called once
// all ranks have loaded their tensors.
void RestoreCounters(const Manifest& manifest, bool restores_loss_scale, ParallelState& state);
// Calls LoadTensors, then RestoreCounters, which restores the loss scale, too.
absl::Status LoadState(const Checkpoint& checkpoint, ParallelState& state);

// Has the model read its initial weights from `path` (train.model.init_from), a checkpoint or a safetensors file; its
// optimizer state is ignored. If it has no adapters and the model has some, `adapters` writes their values; `adapters`
// may be null for a model without adapters. Possible errors: those of opening the file, and of CheckParameters;
// InvalidArgument if the file has adapters and the model has none.
absl::Status InitializeFrom(const std::string& path, const InitialValues& adapters, Model& model);

}  // namespace trainyard
