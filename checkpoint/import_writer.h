// Writes a whole checkpoint from one process, for `trainctl checkpoint import` (the ranks of a job use part.h instead).
// A crash at any moment leaves either a whole checkpoint or none, because the steps are:
//
//   1. create step-00000000.g0.partial/, write the shard there, hash it while it is written, and sync it
//   2. write step-00000000.g0.partial/manifest.json and sync it
//   3. rename the folder to step-00000000/ and sync the parent
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

// Accepts all bytes of the next tensor, dense and row-major. Must not be called again after an error.
using TensorSink = absl::FunctionRef<absl::Status(absl::string_view bytes)>;
// Passes the tensors to the sink, in the order of `tensors` below; returns the sink's error, if any.
using TensorStream = absl::FunctionRef<absl::Status(TensorSink sink)>;

// Writes the tensors and `manifest` (whose `files`, `tensors` and `nonfinite` are filled in here) below `run_folder`,
// and replaces a checkpoint of the same step. After an error, the partial folder is removed. Fails with
// ResourceExhausted if the disk is full, with other errors of the file system, and with those of `stream`, which is not
// called if the folder cannot be created.
absl::StatusOr<SavedCheckpoint> WriteImportedCheckpoint(const std::string& run_folder, Manifest manifest,
                                                        const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                        FileSystem& file_system);

}  // namespace trainyard
