// manifest.json in a checkpoint's folder: the file that makes a folder a checkpoint, written last. Stateless.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"

namespace trainyard {

// Creates the file in `folder`, and syncs both. Fails with the errors of the file system.
absl::Status WriteManifest(const std::string& folder, absl::string_view text, FileSystem& file_system);

// Fails with the errors of ReadRegularFile, and with DataLoss if the file is longer than any manifest can be.
absl::StatusOr<std::string> ReadManifestText(const std::string& folder);

// A complete checkpoint under its final name.
struct SavedCheckpoint {
  std::string path;
  std::string manifest_hash;
  uint64_t size_bytes = 0;  // of all files
};

// `text` is the text of `manifest`.
SavedCheckpoint SavedCheckpointOf(const std::string& path, const Manifest& manifest, absl::string_view text);

}  // namespace trainyard
