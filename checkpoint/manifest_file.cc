#include "checkpoint/manifest_file.h"

#include <filesystem>
#include <system_error>

#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kManifestBytesMax = 256 << 20;

}  // namespace

absl::Status WriteManifest(const std::string& folder, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(JoinPath(folder, kManifestName)));
  RETURN_IF_ERROR(file->Append(text));
  RETURN_IF_ERROR(file->Sync());
  return file_system.SyncFolder(folder);
}

absl::StatusOr<std::string> ReadManifestText(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  absl::StatusOr<std::string> text = ReadRegularFile(path, kManifestBytesMax);
  std::error_code error;
  // ResourceExhausted alone may also mean that this process can open no more files.
  const bool maybe_long = absl::IsResourceExhausted(text.status());
  if (maybe_long && std::filesystem::file_size(path, error) > kManifestBytesMax && !error) {
    return absl::DataLossError(text.status().message());
  }
  return text;
}

SavedCheckpoint SavedCheckpointOf(const std::string& path, const Manifest& manifest, absl::string_view text) {
  SavedCheckpoint saved{.path = path, .manifest_hash = ManifestHash(text), .size_bytes = text.size()};
  for (const ManifestFile& file : manifest.files) saved.size_bytes += file.bytes;
  return saved;
}

}  // namespace trainyard
