// Writes a whole checkpoint from one process, for `trainctl checkpoint import` (part.h is for what the ranks of a job
// write together), so that a crash at any moment leaves either a whole checkpoint or none:
//
//   step-00000000.g0.partial/   made; the shard streamed into it, hashed on the way, synced
//   step-00000000.g0.partial/manifest.json   last, synced
//   step-00000000/              by one rename; the parent synced
//
// Not thread-safe: the calling thread must be the only one that writes to the run folder.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/shard_writer.h"

namespace trainyard {

// Takes all bytes of the next tensor, dense and row-major. After an error nothing more is taken.
using TensorSink = absl::FunctionRef<absl::Status(absl::string_view bytes)>;
// Passes the tensors to the sink, in the order in which they were announced; returns the sink's error, if any.
using TensorStream = absl::FunctionRef<absl::Status(TensorSink sink)>;

// Writes the tensors and `manifest` (whose `files`, `tensors` and `nonfinite` are filled in here) below `run_folder`,
// and replaces a checkpoint of the same step. If it fails, what was begun is removed. Fails with ResourceExhausted if
// the disk is full, with other errors of the file system, and with those of `stream`, which is not called if the folder
// cannot be made.
absl::StatusOr<SavedCheckpoint> WriteImportedCheckpoint(const std::string& run_folder, Manifest manifest,
                                                        const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                        FileSystem& file_system);

}  // namespace trainyard
