#include "worker/checkpoint/writer.h"

#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "worker/checkpoint/catalog.h"
#include "worker/checkpoint/safetensors.h"

namespace trainyard {
namespace {

constexpr char kShardName[] = "shard-00000.safetensors";
// What is hashed and handed to the kernel at a time: small enough to be still in the cache for the second.
constexpr size_t kChunkBytes = 256 << 10;

// A file that is hashed as it is written.
class HashedFile {
 public:
  HashedFile(std::unique_ptr<WritableFile> file, std::string name) : file_(std::move(file)) {
    entry_.name = std::move(name);
  }

  // Adds the hash of `bytes` alone to `piece` where it is given.
  absl::Status Append(absl::string_view bytes, std::string* piece = nullptr) {
    Hasher own;
    entry_.bytes += bytes.size();
    while (!bytes.empty()) {
      absl::string_view chunk = bytes.substr(0, kChunkBytes);
      whole_.Add(chunk);
      if (piece != nullptr) own.Add(chunk);
      RETURN_IF_ERROR(file_->Append(chunk));
      bytes.remove_prefix(chunk.size());
    }
    if (piece != nullptr) *piece = own.Hex();
    return absl::OkStatus();
  }

  absl::StatusOr<ManifestFile> Finish() {
    RETURN_IF_ERROR(file_->Sync());
    entry_.hash = whole_.Hex();
    return entry_;
  }

 private:
  std::unique_ptr<WritableFile> file_;
  Hasher whole_;
  ManifestFile entry_;
};

// The whole tensor as one piece: a box as large as the tensor, all of its elements.
ManifestTensor WholePiece(const TensorHeader& tensor, const TensorInfo& info, uint64_t data_begins) {
  ManifestPiece piece;
  piece.file = kShardName;
  piece.start.assign(tensor.shape.size(), 0);
  piece.size = tensor.shape;
  piece.last_element = (info.end - info.begin) / DtypeBytes(tensor.dtype);
  piece.first_byte = data_begins + info.begin;
  piece.last_byte = data_begins + info.end;
  return {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape, .pieces = {piece}};
}

// Whether any value of a floating type is infinite or not a number: its exponent is all ones. `bytes` is of whole
// values.
template <typename Bits>
bool AnyNonfinite(absl::string_view bytes, Bits exponent) {
  bool any = false;
  for (size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    any |= (bits & exponent) == exponent;
  }
  return any;
}

bool HasNonfinite(absl::string_view dtype, absl::string_view bytes) {
  if (dtype == "F32") return AnyNonfinite<uint32_t>(bytes, 0x7F800000u);
  if (dtype == "F64") return AnyNonfinite<uint64_t>(bytes, uint64_t{0x7FF} << 52);
  if (dtype == "F16") return AnyNonfinite<uint16_t>(bytes, 0x7C00);
  if (dtype == "BF16") return AnyNonfinite<uint16_t>(bytes, 0x7F80);
  return false;
}

absl::Status WrongSize(const TensorHeader& tensor, size_t bytes) {
  return absl::InternalError(absl::StrCat("tensor '", tensor.name, "' of ", tensor.dtype, " ", ShapeText(tensor.shape),
                                          " was given with ", bytes, " bytes"));
}

absl::StatusOr<std::vector<TensorInfo>> InfosOf(const std::vector<TensorHeader>& tensors) {
  std::vector<TensorInfo> infos;
  for (const TensorHeader& tensor : tensors) {
    RETURN_IF_ERROR(CountElements(tensor.shape));
    if (DtypeBytes(tensor.dtype) == 0) return WrongSize(tensor, 0);
    TensorInfo& info = infos.emplace_back();
    info.name = ShardTensorName(tensor.role, tensor.name);
    info.dtype = tensor.dtype;
    info.shape = tensor.shape;
  }
  return infos;
}

absl::Status WriteShard(const std::string& folder, const std::vector<TensorHeader>& tensors, TensorStream stream,
                        Manifest& manifest, FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::vector<TensorInfo> infos, InfosOf(tensors));
  std::string header = SafetensorsHeader(infos, {{"format", "pt"}});
  ASSIGN_OR_RETURN(auto raw, file_system.Create(JoinPath(folder, kShardName)));
  HashedFile file(std::move(raw), kShardName);
  RETURN_IF_ERROR(file.Append(header));
  RETURN_IF_ERROR(stream([&](absl::string_view bytes) -> absl::Status {
    const size_t i = manifest.tensors.size();
    if (i == tensors.size()) return absl::InternalError("more tensors were given than announced");
    ManifestTensor entry = WholePiece(tensors[i], infos[i], header.size());
    if (bytes.size() != infos[i].end - infos[i].begin) return WrongSize(tensors[i], bytes.size());
    if (manifest.nonfinite.size() < kNonfiniteListed && HasNonfinite(tensors[i].dtype, bytes)) {
      manifest.nonfinite.push_back(absl::StrCat(tensors[i].role, " '", tensors[i].name, "'"));
    }
    RETURN_IF_ERROR(file.Append(bytes, &entry.pieces[0].hash));
    manifest.tensors.push_back(std::move(entry));
    return absl::OkStatus();
  }));
  if (manifest.tensors.size() < tensors.size()) return WrongSize(tensors[manifest.tensors.size()], 0);
  ASSIGN_OR_RETURN(ManifestFile written, file.Finish());
  manifest.files.push_back(std::move(written));
  return absl::OkStatus();
}

absl::Status WriteManifest(const std::string& folder, absl::string_view text, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(JoinPath(folder, kManifestName)));
  RETURN_IF_ERROR(file->Append(text));
  RETURN_IF_ERROR(file->Sync());
  return file_system.SyncFolder(folder);
}

}  // namespace

std::string ShardTensorName(absl::string_view role, absl::string_view name) {
  return role == "parameter" ? std::string(name) : absl::StrCat("optimizer.", role, ".", name);
}

absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                const std::vector<TensorHeader>& tensors, TensorStream stream,
                                                FileSystem& file_system,
                                                const std::function<absl::Status()>& may_commit) {
  const std::string path = JoinPath(run_folder, StepFolderName(manifest.step));
  const std::string partial = absl::StrCat(path, ".g", manifest.generation, kPartialSuffix);
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
