// Writes a whole checkpoint from one process (what a job's ranks write together: part.h), so that a crash at any moment
// leaves either nothing that counts or all of it:
//
//   step-00000100.g2.partial/   made; the shard streamed into it, hashed on the way, synced
//   step-00000100.g2.partial/manifest.json   last, synced
//   step-00000100/              by one rename; the parent synced
//
// A failure (disk full, folder gone) is a status that names the file; what was begun is removed. One thread at a time,
// which holds the run folder's lock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"

namespace trainyard {

// "shard-00003.safetensors".
std::string ShardName(uint64_t rank);
// "<run folder>/step-00000100.g2.partial".
std::string PartialPath(const std::string& run_folder, uint64_t step, uint64_t generation);

// Takes all bytes of the next tensor, dense and row-major. After an error nothing more is taken.
using TensorSink = absl::FunctionRef<absl::Status(absl::string_view bytes)>;
// Hands the tensors to the sink, in the order in which they were announced; returns the sink's error, if any.
using TensorStream = absl::FunctionRef<absl::Status(TensorSink sink)>;

// A whole tensor in memory, dense and row-major. `bytes` is borrowed for the time of the call.
struct TensorBytes {
  std::string name;
  std::string role;
  std::string dtype;
  std::vector<int64_t> shape;
  absl::string_view bytes;
};

struct SavedCheckpoint {
  std::string path;
  std::string manifest_hash;
  uint64_t size_bytes = 0;  // of all files
};

// Creates manifest.json in `folder`, and syncs both. Possible errors: those of the file system.
absl::Status WriteManifest(const std::string& folder, absl::string_view text, FileSystem& file_system);

// Writes the tensors and `manifest` (whose `files`, `tensors` and `nonfinite` are filled in here) below `run_folder`. A
// checkpoint of the same step that is there already is replaced at once. `may_commit` is asked right before the
// checkpoint gets its name: an error ends the save, and the folder is as it was. Possible errors: ResourceExhausted
// when the disk is full; PermissionDenied, NotFound and others of the file system; those of `stream`, which is not
// called where the folder cannot be made; those of `may_commit`.
absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                FileSystem& file_system,
                                                const std::function<absl::Status()>& may_commit = nullptr);
// The same with tensors that are all there.
absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                const std::vector<TensorBytes>& tensors, FileSystem& file_system,
                                                const std::function<absl::Status()>& may_commit = nullptr);

}  // namespace trainyard
