#include "checkpoint/import_writer.h"

#include "absl/cleanup/cleanup.h"
#include "checkpoint/catalog.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

absl::Status WriteShard(const std::string& folder, const std::vector<TensorHeader>& tensors, TensorStream stream,
                        Manifest& manifest, FileSystem& file_system) {
  std::vector<ShardEntry> entries;
  for (const TensorHeader& tensor : tensors) {
    ASSIGN_OR_RETURN(uint64_t elements, CountElements(tensor.shape));
    entries.push_back({.tensor = tensor, .first = 0, .count = elements});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> shard,
                   ShardWriter::Create(folder, ShardName(0), std::move(entries), file_system));
  RETURN_IF_ERROR(stream([&](absl::string_view bytes) { return shard->Append(bytes); }));
  ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
  manifest.files.push_back(std::move(written.file));
  manifest.tensors = std::move(written.tensors);
  manifest.nonfinite = std::move(written.nonfinite);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SavedCheckpoint> WriteImportedCheckpoint(const std::string& run_folder, Manifest manifest,
                                                        const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                        FileSystem& file_system) {
  const std::string path = JoinPath(run_folder, StepFolderName(manifest.step));
  const std::string partial = PartialPath(run_folder, manifest.step, manifest.generation);
  manifest.files.clear();
  manifest.tensors.clear();
  manifest.nonfinite.clear();
  RETURN_IF_ERROR(file_system.RemoveAll(partial));
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  // If a checkpoint of this step exists, PublishFolder exchanges the two folders, and this cleanup removes the old one.
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };

  RETURN_IF_ERROR(WriteShard(partial, tensors, stream, manifest, file_system));
  const std::string text = ManifestText(manifest);
  RETURN_IF_ERROR(WriteManifest(partial, text, file_system));
  RETURN_IF_ERROR(PublishFolder(partial, path, file_system));
  return SavedCheckpointOf(path, manifest, text);
}

}  // namespace trainyard
