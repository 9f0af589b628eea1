// The part of a checkpoint that one rank has written, described in a file next to its shard (part-00003.json), and the
// manifest that rank 0 assembles from the parts of all ranks. docs/checkpoint-format.md has the order in which these
// files are created and removed. Thread-safe.
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
  std::vector<ManifestTensor> tensors = {};  // with the pieces in these files; a tensor may occur more than once
  // Pieces that this rank holds and another rank writes: only their hashes, with the writer's boundaries. `file` is "".
  std::vector<ManifestTensor> witnessed = {};
  std::vector<std::string> nonfinite = {};  // as in a manifest
};

std::string PartName(uint64_t rank);  // "part-00003.json"

// The text ends with a line feed. Equal parts have equal texts.
std::string PartText(const CheckpointPart& part);
// Fails with DataLoss if the text does not match its hash, or a key is missing, unknown or of the wrong type.
absl::StatusOr<CheckpointPart> ParsePart(absl::string_view text);

// Creates the part's file in `folder`, and syncs both. Fails with the errors of the file system.
absl::Status WriteCheckpointPart(const std::string& folder, const CheckpointPart& part, FileSystem& file_system);

// Reads the part of `rank`, and checks that its files are there. Fails with Unavailable if the part or a file is not
// there yet or not complete (a network file system may show either late), with FailedPrecondition if the part belongs
// to another save.
absl::StatusOr<CheckpointPart> ReadCheckpointPart(const std::string& folder, uint64_t rank, const SaveKey& save);

// Fills `files`, `tensors` (in the order of the argument) and `nonfinite` of `manifest`. Fails with DataLoss if a
// tensor of a part is not in `tensors` or has another type or shape, if an element is not written exactly once, or if
// ranks that should hold the same values do not; the message names both ranks and the tensor.
absl::Status AssembleManifest(const std::vector<CheckpointPart>& parts, const std::vector<TensorHeader>& tensors,
                              Manifest& manifest);

// Removes the parts of all ranks, and syncs the folder. Fails with the errors of the file system.
absl::Status RemoveCheckpointParts(const std::string& folder, uint64_t world_size, FileSystem& file_system);

}  // namespace trainyard
