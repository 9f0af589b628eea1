#include "checkpoint/part.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/manifest_json.h"
#include "common/box.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using manifest_json::Json;
using manifest_json::ObjectReader;

constexpr char kPartDocument[] = "part";
constexpr uint64_t kPartVersion = 4;
constexpr uint64_t kPartBytesMax = 256 << 20;

std::string RoleAndName(const ManifestTensor& tensor) { return absl::StrCat(tensor.role, " '", tensor.name, "'"); }

// Opens the file to read its length, because stat with a path may return outdated attributes on a network file system.
absl::Status CheckLength(const std::string& path, uint64_t bytes) {
  const absl::StatusOr<int> opened = OpenRegularFile(path, O_RDONLY);
  if (!opened.ok()) return absl::UnavailableError(opened.status().message());
  const int fd = *opened;
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat st;
  if (fstat(fd, &st) != 0)
    return absl::UnavailableError(ErrnoStatus(errno, absl::StrCat("cannot read the length of ", path)).message());
  if (static_cast<uint64_t>(st.st_size) == bytes) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, " has ", st.st_size, " bytes; its part lists ", bytes));
}

// Tensor, box, first element, last element.
using PieceKey = std::tuple<std::string, Box, uint64_t, uint64_t>;
struct Writer {
  uint64_t rank = 0;
  std::string hash;
};

PieceKey KeyOf(const ManifestTensor& tensor, const ManifestPiece& piece) {
  return {RoleAndName(tensor), {.start = piece.start, .size = piece.size}, piece.first_element, piece.last_element};
}

// "elements [0, 8) of parameter 'wte.weight'[0:4,0:2]".
std::string PieceText(const ManifestTensor& tensor, const ManifestPiece& piece) {
  return absl::StrCat("elements [", piece.first_element, ", ", piece.last_element, ") of ", RoleAndName(tensor),
                      BoxText({.start = piece.start, .size = piece.size}, tensor.shape));
}

// Compares pieces that several ranks hold: the same elements must have the same hash.
absl::Status CheckWitnesses(const std::vector<CheckpointPart>& parts) {
  std::map<PieceKey, Writer> written;
  for (const CheckpointPart& part : parts) {
    for (const ManifestTensor& tensor : part.tensors) {
      for (const ManifestPiece& piece : tensor.pieces) {
        written[KeyOf(tensor, piece)] = {part.rank, piece.hash};
      }
    }
  }
  for (const CheckpointPart& part : parts) {
    for (const ManifestTensor& tensor : part.witnessed) {
      for (const ManifestPiece& piece : tensor.pieces) {
        const auto writer = written.find(KeyOf(tensor, piece));
        if (writer == written.end()) {
          return absl::DataLossError(
              absl::StrCat("rank ", part.rank, " holds ", PieceText(tensor, piece), ", which no rank has written"));
        }
        if (writer->second.hash == piece.hash) continue;
        return absl::DataLossError(absl::StrCat("ranks ", writer->second.rank, " and ", part.rank,
                                                " should hold the same values and do not: ", PieceText(tensor, piece),
                                                "; the memory or device of one of their hosts may be at fault "
                                                "(diagnostics.hash_every_steps finds the step)"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string PartName(uint64_t rank) { return absl::StrFormat("part-%05d.json", rank); }

std::string PartText(const CheckpointPart& part) {
  return manifest_json::TextWithHash({{"hash", ""},
                                      {"format", "trainyard-checkpoint-part"},
                                      {"version", kPartVersion},
                                      {"step", part.save.step},
                                      {"generation", part.save.generation},
                                      {"world_size", part.save.world_size},
                                      {"rank", part.rank},
                                      {"nonfinite", part.nonfinite},
                                      {"files", manifest_json::FilesJson(part.files)},
                                      {"tensors", manifest_json::TensorsJson(part.tensors)},
                                      {"witnessed", manifest_json::TensorsJson(part.witnessed)}});
}

absl::StatusOr<CheckpointPart> ParsePart(absl::string_view text) {
  ASSIGN_OR_RETURN(Json json, manifest_json::ParseWithHash(text, kPartDocument));
  CheckpointPart part;
  std::string hash, format;
  uint64_t version = 0;
  ObjectReader top(json, "part: the file");
  top.Read("hash", hash);
  top.Read("format", format);
  top.Read("version", version);
  top.Read("step", part.save.step);
  top.Read("generation", part.save.generation);
  top.Read("world_size", part.save.world_size);
  top.Read("rank", part.rank);
  top.Read("nonfinite", part.nonfinite);
  const Json& files = top.Inner("files", /*list=*/true);
  const Json& tensors = top.Inner("tensors", /*list=*/true);
  const Json& witnessed = top.Inner("witnessed", /*list=*/true);
  RETURN_IF_ERROR(top.Finish());
  if (format != "trainyard-checkpoint-part" || version != kPartVersion) {
    return absl::DataLossError(absl::StrCat("part: expected format 'trainyard-checkpoint-part' of version ",
                                            kPartVersion, ", found format '", format, "' of version ", version));
  }
  RETURN_IF_ERROR(manifest_json::ReadFiles(files, kPartDocument, part.files));
  RETURN_IF_ERROR(manifest_json::ReadTensors(tensors, kPartDocument, part.tensors));
  RETURN_IF_ERROR(manifest_json::ReadTensors(witnessed, kPartDocument, part.witnessed));
  return part;
}

absl::Status WriteCheckpointPart(const std::string& folder, const CheckpointPart& part, FileSystem& file_system) {
  ASSIGN_OR_RETURN(auto file, file_system.Create(JoinPath(folder, PartName(part.rank))));
  RETURN_IF_ERROR(file->Append(PartText(part)));
  RETURN_IF_ERROR(file->Sync());
  return file_system.SyncFolder(folder);
}

absl::StatusOr<CheckpointPart> ReadCheckpointPart(const std::string& folder, uint64_t rank, const SaveKey& save) {
  const std::string path = JoinPath(folder, PartName(rank));
  absl::StatusOr<std::string> text = ReadRegularFile(path, kPartBytesMax);
  if (!text.ok()) return absl::UnavailableError(text.status().message());
  absl::StatusOr<CheckpointPart> part = ParsePart(*text);
  if (!part.ok()) return absl::UnavailableError(absl::StrCat(path, ": ", part.status().message()));
  if (part->save != save || part->rank != rank) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is of step ", part->save.step, ", generation ", part->save.generation, ", rank ",
                     part->rank, " of ", part->save.world_size, ", not of step ", save.step, ", generation ",
                     save.generation, ", rank ", rank, " of ", save.world_size));
  }
  for (const ManifestFile& file : part->files) {
    RETURN_IF_ERROR(CheckLength(JoinPath(folder, file.name), file.bytes));
  }
  return part;
}

absl::Status AssembleManifest(const std::vector<CheckpointPart>& parts, const std::vector<TensorHeader>& tensors,
                              Manifest& manifest) {
  manifest.files.clear();
  manifest.tensors.clear();
  manifest.nonfinite.clear();
  absl::flat_hash_map<std::string, size_t> indexes;  // in manifest.tensors
  for (const TensorHeader& tensor : tensors) {
    manifest.tensors.push_back(
        {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}});
    indexes[RoleAndName(manifest.tensors.back())] = manifest.tensors.size() - 1;
  }
  for (const CheckpointPart& part : parts) {
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    for (const ManifestTensor& tensor : part.tensors) {
      const auto index = indexes.find(RoleAndName(tensor));
      if (index == indexes.end() || manifest.tensors[index->second].dtype != tensor.dtype ||
          manifest.tensors[index->second].shape != tensor.shape) {
        return absl::DataLossError(absl::StrCat("rank ", part.rank, " has written ", RoleAndName(tensor), " of ",
                                                tensor.dtype, " ", ShapeText(tensor.shape),
                                                ", which is not a tensor of this state"));
      }
      std::vector<ManifestPiece>& pieces = manifest.tensors[index->second].pieces;
      pieces.insert(pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
    for (const std::string& name : part.nonfinite) {
      const bool is_new =
          std::find(manifest.nonfinite.begin(), manifest.nonfinite.end(), name) == manifest.nonfinite.end();
      if (is_new && manifest.nonfinite.size() < kNonfiniteListed) manifest.nonfinite.push_back(name);
    }
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const ManifestPiece& a, const ManifestPiece& b) {
      return std::tie(a.start, a.size, a.first_element) < std::tie(b.start, b.size, b.first_element);
    });
  }
  RETURN_IF_ERROR(CheckManifest(manifest));
  return CheckWitnesses(parts);
}

absl::Status RemoveCheckpointParts(const std::string& folder, uint64_t world_size, FileSystem& file_system) {
  for (uint64_t rank = 0; rank < world_size; ++rank) {
    RETURN_IF_ERROR(file_system.RemoveAll(JoinPath(folder, PartName(rank))));
  }
  return file_system.SyncFolder(folder);
}

}  // namespace trainyard
