// Rewrites a checkpoint in another layout: as the shards of any number of ranks or with whole tensors, and with weights
// in another type. Runs offline and without torch, with one piece in memory at a time (one tensor for whole tensors).
// A job can load a checkpoint of any layout, so only users need this: to pass weights on in one file, to store the 64
// files of a run in 4, or to resume with other types.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/reader.h"

namespace trainyard {

struct ReshardOptions {
  // The number of shards, each with a flat range of every tensor. 0: whole tensors, the weights in model.safetensors,
  // the optimizer's state in optimizer.safetensors.
  uint64_t ranks = 0;
  // The type of the weights, "F32" and so on; empty: unchanged. The optimizer's state keeps its type.
  std::string dtype = {};
  // Called after each write with the number of bytes written.
  std::function<void(uint64_t bytes)> on_bytes = nullptr;
};

// Returns the bytes of tensors that the new checkpoint will have.
uint64_t ReshardedBytes(const Manifest& manifest, const ReshardOptions& options);

// Writes the new checkpoint below `run_folder`, which is created if needed, with the same step and generation. The
// manifest is that of `from` except for files, pieces, types, `nonfinite` and, with shards, `layout.world_size`, and
// without copies of the weights (checkpoint.weights_copy). Fails with AlreadyExists if there is a checkpoint of that
// step, with InvalidArgument for a type that weights cannot have or that cannot store one of them, or more than 100,000
// ranks, and with the errors of reading and of the file system.
absl::StatusOr<SavedCheckpoint> ReshardCheckpoint(const Checkpoint& from, const ReshardOptions& options,
                                                  const std::string& run_folder, FileSystem& file_system);

}  // namespace trainyard
