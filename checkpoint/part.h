// What one rank has written of a checkpoint, as a file beside its shard (part-00003.json), and the manifest that rank 0
// makes of all ranks' parts. The order in which these files come and go: docs/checkpoint-format.md. Any thread.
//
//   every rank   WriteCheckpointPart
//   rank 0       ReadCheckpointPart of each, AssembleManifest, RemoveCheckpointParts, WriteManifest
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"

namespace trainyard {

// Which save a part belongs to.
struct SaveKey {
  uint64_t step = 0;
  uint64_t generation = 0;
  uint64_t world_size = 0;
  bool operator==(const SaveKey&) const = default;
};

struct CheckpointPart {
  SaveKey save = {};
  uint64_t rank = 0;
  std::vector<ManifestFile> files = {};
  std::vector<ManifestTensor> tensors = {};  // with the pieces in these files; a tensor may come more than once
  // Pieces that this rank holds too and another writes: hashes alone, cut as that one cuts them. Their file is "".
  std::vector<ManifestTensor> witnessed = {};
  std::vector<std::string> nonfinite = {};  // as in a manifest
};

std::string PartName(uint64_t rank);  // "part-00003.json"

// Ends with a line feed. Two calls give the same text.
std::string PartText(const CheckpointPart& part);
// Possible errors: DataLoss when the hash does not cover the text, or a key is missing, unknown or of the wrong type.
absl::StatusOr<CheckpointPart> ParsePart(absl::string_view text);

// Creates the part's file in `folder`, and syncs both. Possible errors: those of the file system.
absl::Status WriteCheckpointPart(const std::string& folder, const CheckpointPart& part, FileSystem& file_system);

// Reads the part of `rank`, and looks for its files. Possible errors: Unavailable: it, or a file it names, is not there
// yet, or not whole: a network file system may show either late; FailedPrecondition: it belongs to another save.
absl::StatusOr<CheckpointPart> ReadCheckpointPart(const std::string& folder, uint64_t rank, const SaveKey& save);

// Fills files, tensors and `nonfinite` of `manifest`: the tensors are `tensors`, in that order. Possible errors:
// DataLoss: a tensor is of another type or shape in a part, is no tensor of the state, is not covered exactly once, or
// two ranks that should hold the same do not: the message names both and the tensor.
absl::Status AssembleManifest(const std::vector<CheckpointPart>& parts, const std::vector<TensorHeader>& tensors,
                              Manifest& manifest);

// All ranks' parts, and syncs the folder. Possible errors: those of the file system.
absl::Status RemoveCheckpointParts(const std::string& folder, uint64_t world_size, FileSystem& file_system);

}  // namespace trainyard
