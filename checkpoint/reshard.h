// Writes a checkpoint again as another layout would have written it: as the parts of any number of ranks, or whole, and
// its weights in another type. Offline, without torch: a piece is in memory at a time (where tensors are to lie whole,
// a tensor). Any layout loads any checkpoint, so this is for people: to hand weights on in one file, to store what was
// saved by 64 ranks in 4 files, or to go on with other types.
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
  // Shards, each a flat share of every tensor. 0: whole tensors, the weights in model.safetensors, the optimizer's
  // state in optimizer.safetensors.
  uint64_t ranks = 0;
  // Of the weights, "F32" and so on; empty: as they are. The optimizer's state keeps its type.
  std::string dtype = {};
  // So many more bytes of the new checkpoint are written.
  std::function<void(uint64_t bytes)> on_bytes = nullptr;
};

// Bytes of tensors that the new checkpoint will have.
uint64_t ReshardedBytes(const Manifest& manifest, const ReshardOptions& options);

// Below `run_folder`, which is made if need be, under the same step and generation; nothing has that name until all is
// there. The manifest is that of `from` but for files and pieces, `layout.world_size` where there are ranks, and
// `nonfinite`. Possible errors: AlreadyExists: there is a checkpoint of that step; InvalidArgument: a type that weights
// cannot have, or more ranks than 100,000; those of reading and of the file system.
absl::StatusOr<SavedCheckpoint> ReshardCheckpoint(const Checkpoint& from, const ReshardOptions& options,
                                                  const std::string& run_folder, FileSystem& file_system);

}  // namespace trainyard
