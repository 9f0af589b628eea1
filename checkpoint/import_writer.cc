#include "checkpoint/import_writer.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

std::string ShardName(uint64_t rank) { return absl::StrFormat("shard-%05d.safetensors", rank); }

std::string PartialPath(const std::string& run_folder, uint64_t step, uint64_t generation) {
  return JoinPath(run_folder, absl::StrCat(StepFolderName(step), ".g", generation, kPartialSuffix));
}

absl::Status WriteManifest(const std::string& folder, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(JoinPath(folder, kManifestName)));
  RETURN_IF_ERROR(file->Append(text));
  RETURN_IF_ERROR(file->Sync());
  return file_system.SyncFolder(folder);
}

absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                FileSystem& file_system,
                                                const std::function<absl::Status()>& may_commit) {
  const std::string path = JoinPath(run_folder, StepFolderName(manifest.step));
  const std::string partial = PartialPath(run_folder, manifest.step, manifest.generation);
  manifest.files.clear();
  manifest.tensors.clear();
  manifest.nonfinite.clear();
  RETURN_IF_ERROR(file_system.RemoveAll(partial));
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  // After the rename this removes the checkpoint that was replaced, if there was one.
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };

  RETURN_IF_ERROR(WriteShard(partial, tensors, stream, manifest, file_system));
  std::string text = ManifestText(manifest);
  RETURN_IF_ERROR(WriteManifest(partial, text, file_system));
  if (may_commit != nullptr) {
    RETURN_IF_ERROR(may_commit());
  }
  RETURN_IF_ERROR(file_system.RenameOrExchange(partial, path));
  RETURN_IF_ERROR(file_system.SyncFolder(run_folder));

  SavedCheckpoint saved{.path = path, .manifest_hash = ManifestHash(text), .size_bytes = text.size()};
  for (const ManifestFile& file : manifest.files) saved.size_bytes += file.bytes;
  return saved;
}

absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                const std::vector<TensorBytes>& tensors, FileSystem& file_system,
                                                const std::function<absl::Status()>& may_commit) {
  std::vector<TensorHeader> headers;
  for (const TensorBytes& tensor : tensors) {
    headers.push_back({.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  auto stream = [&](TensorSink sink) -> absl::Status {
    for (const TensorBytes& tensor : tensors) {
      RETURN_IF_ERROR(sink(tensor.bytes));
    }
    return absl::OkStatus();
  };
  return WriteCheckpoint(run_folder, std::move(manifest), headers, stream, file_system, may_commit);
}

}  // namespace trainyard
