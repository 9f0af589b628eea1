#include "checkpoint/reshard.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/settle.h"
#include "checkpoint/shard_writer.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kRanksMax = 100'000;

// Returns the dtype that the tensor has in the new checkpoint.
std::string NewDtype(const ManifestTensor& tensor, const ReshardOptions& options) {
  return tensor.role == kParameterRole && !options.dtype.empty() ? options.dtype : tensor.dtype;
}

uint64_t ElementsOf(const ManifestTensor& tensor) { return CountElements(tensor.shape).value_or(0); }

// A file to write: its entries, and the old tensor that each is read from.
struct NewFile {
  std::string name;
  std::vector<ShardEntry> entries = {};
  std::vector<const ManifestTensor*> sources = {};

  void Add(const ManifestTensor& tensor, const ReshardOptions& options, uint64_t first, uint64_t count) {
    entries.push_back({.tensor = {.name = tensor.name,
                                  .role = tensor.role,
                                  .dtype = NewDtype(tensor, options),
                                  .shape = tensor.shape},
                       .first = first,
                       .count = count});
    sources.push_back(&tensor);
  }
};

// Returns the tensors with the widest types first, so that each is aligned to its elements.
std::vector<const ManifestTensor*> WidestFirst(const Manifest& manifest, const ReshardOptions& options) {
  std::vector<const ManifestTensor*> tensors;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.role != kCopyRole) tensors.push_back(&tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(), [&](const ManifestTensor* a, const ManifestTensor* b) {
    return DtypeBytes(NewDtype(*a, options)) > DtypeBytes(NewDtype(*b, options));
  });
  return tensors;
}

std::vector<NewFile> FilesOfWholeTensors(const Manifest& manifest, const ReshardOptions& options) {
  std::vector<NewFile> files = {{.name = "model.safetensors"}, {.name = "optimizer.safetensors"}};
  for (const ManifestTensor* tensor : WidestFirst(manifest, options)) {
    files[tensor->role == kParameterRole ? 0 : 1].Add(*tensor, options, 0, ElementsOf(*tensor));
  }
  std::erase_if(files, [](const NewFile& file) { return file.entries.empty(); });
  return files;
}

NewFile ShardOf(const Manifest& manifest, const ReshardOptions& options, uint64_t rank) {
  NewFile file{.name = ShardName(rank)};
  for (const ManifestTensor* tensor : WidestFirst(manifest, options)) {
    const uint64_t elements = ElementsOf(*tensor);
    const uint64_t share = elements / options.ranks, remainder = elements % options.ranks;
    const uint64_t first = rank * share + std::min(rank, remainder), count = share + (rank < remainder ? 1 : 0);
    if (count == 0) continue;
    // One entry per piece, so that only one piece is in memory at a time.
    const TensorHeader header{
        .name = tensor->name, .role = tensor->role, .dtype = NewDtype(*tensor, options), .shape = tensor->shape};
    for (const ManifestPiece& piece : CutIntoPieces({.tensor = header, .box = {}, .first = first, .count = count})) {
      file.Add(*tensor, options, piece.first_element, piece.last_element - piece.first_element);
    }
  }
  return file;
}

// The pieces of each tensor, in the order of the files.
using PiecesByTensor = std::map<std::pair<std::string, std::string>, std::vector<ManifestPiece>>;

absl::Status WriteFile(const Checkpoint& from, const NewFile& file, const std::string& folder,
                       const ReshardOptions& options, FileSystem& file_system, Manifest& manifest,
                       PiecesByTensor& pieces) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> shard,
                   ShardWriter::Create(folder, file.name, file.entries, file_system));
  std::string bytes;
  for (size_t i = 0; i < file.entries.size(); ++i) {
    const ManifestTensor& source = *file.sources[i];
    const ShardEntry& entry = file.entries[i];
    bytes.resize(entry.count * DtypeBytes(source.dtype));
    RETURN_IF_ERROR(from.ReadRange(source.role, source.name, source.dtype, source.shape,
                                   static_cast<int64_t>(entry.first), static_cast<int64_t>(entry.count),
                                   absl::MakeSpan(bytes.data(), bytes.size())));
    if (source.dtype != entry.tensor.dtype) {
      ASSIGN_OR_RETURN(bytes, ConvertWeights(source.name, bytes, source.dtype, entry.tensor.dtype));
    }
    RETURN_IF_ERROR(shard->Append(bytes));
    if (options.on_bytes != nullptr) options.on_bytes(bytes.size());
  }
  ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
  manifest.files.push_back(std::move(written.file));
  for (ManifestTensor& tensor : written.tensors) {
    auto& all = pieces[{tensor.role, tensor.name}];
    std::move(tensor.pieces.begin(), tensor.pieces.end(), std::back_inserter(all));
  }
  for (std::string& name : written.nonfinite) {
    const bool known =
        std::find(manifest.nonfinite.begin(), manifest.nonfinite.end(), name) != manifest.nonfinite.end();
    if (!known && manifest.nonfinite.size() < kNonfiniteListed) manifest.nonfinite.push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Checkpoint& from, const ReshardOptions& options) {
  if (options.ranks > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write the shards of ", options.ranks, " ranks; the limit is ", kRanksMax));
  }
  if (options.dtype.empty()) return absl::OkStatus();
  if (!IsFloating(options.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("weights cannot be of type ", options.dtype));
  }
  for (const ManifestTensor& tensor : from.manifest().tensors) {
    if (tensor.role != kParameterRole || IsFloating(tensor.dtype)) continue;
    return absl::InvalidArgumentError(absl::StrCat(from.path(), ": parameter '", tensor.name, "' is of type ",
                                                   tensor.dtype, ", which cannot be converted"));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t ReshardedBytes(const Manifest& manifest, const ReshardOptions& options) {
  uint64_t bytes = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.role != kCopyRole) bytes += ElementsOf(tensor) * DtypeBytes(NewDtype(tensor, options));
  }
  return bytes;
}

absl::StatusOr<SavedCheckpoint> ReshardCheckpoint(const Checkpoint& from, const ReshardOptions& options,
                                                  const std::string& run_folder, FileSystem& file_system) {
  RETURN_IF_ERROR(CheckOptions(from, options));
  Manifest manifest = from.manifest();
  const std::string path = JoinPath(run_folder, StepFolderName(manifest.step));
  if (FileExists(path)) return absl::AlreadyExistsError(absl::StrCat(path, " already exists; name another folder"));
  RETURN_IF_ERROR(MakeFolders(run_folder));
  const std::string partial = PartialPath(run_folder, manifest.step, manifest.generation);
  if (FileExists(partial)) {
    RETURN_IF_ERROR(RemovePartial(partial, file_system));
  }
  RETURN_IF_ERROR(file_system.MakeFolder(partial));
  absl::Cleanup remove_partial = [&] { file_system.RemoveAll(partial).IgnoreError(); };

  manifest.files.clear();
  manifest.nonfinite.clear();
  std::erase_if(manifest.tensors, [](const ManifestTensor& tensor) { return tensor.role == kCopyRole; });
  PiecesByTensor pieces;
  if (options.ranks == 0) {
    for (const NewFile& file : FilesOfWholeTensors(from.manifest(), options)) {
      RETURN_IF_ERROR(WriteFile(from, file, partial, options, file_system, manifest, pieces));
    }
  }
  for (uint64_t rank = 0; rank < options.ranks; ++rank) {
    const NewFile file = ShardOf(from.manifest(), options, rank);
    RETURN_IF_ERROR(WriteFile(from, file, partial, options, file_system, manifest, pieces));
    manifest.world_size = options.ranks;
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    tensor.dtype = NewDtype(tensor, options);
    tensor.pieces = std::move(pieces[{tensor.role, tensor.name}]);
  }
  const std::string text = ManifestText(manifest);
  RETURN_IF_ERROR(WriteManifest(partial, text, file_system));
  RETURN_IF_ERROR(PublishNewFolder(partial, path, file_system, remove_partial));
  return SavedCheckpointOf(path, manifest, text);
}

}  // namespace trainyard
