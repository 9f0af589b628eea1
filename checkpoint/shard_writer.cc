#include "checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// The number of bytes that are hashed and then written at a time: few enough to be still in the cache for the write.
constexpr size_t kChunkBytes = 256 << 10;

// In an infinite value or NaN, all bits of the exponent are 1.
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

absl::Status WrongSize(const TensorHeader& tensor, uint64_t expected, size_t found) {
  return absl::InternalError(absl::StrCat("an entry of tensor '", tensor.name, "' of ", tensor.dtype, " ",
                                          ShapeText(tensor.shape), " must have ", expected, " bytes, but ", found,
                                          " were appended"));
}

absl::StatusOr<TensorInfo> InfoOf(const ShardEntry& entry) {
  const TensorHeader& tensor = entry.tensor;
  const Box box = BoxOf(entry);
  RETURN_IF_ERROR(CountElements(tensor.shape).status());
  const bool fits = IsWithin(box, tensor.shape);
  const uint64_t elements = fits ? static_cast<uint64_t>(CountIn(box)) : 0;
  if (DtypeBytes(tensor.dtype) == 0 || !fits || entry.first > elements || entry.count > elements - entry.first) {
    return absl::InternalError(absl::StrCat("cannot write ", entry.count, " elements, beginning with element ",
                                            entry.first, ", of box ", ShapeText(box.start), " + ", ShapeText(box.size),
                                            " of tensor '", tensor.name, "' of ", tensor.dtype, " ",
                                            ShapeText(tensor.shape)));
  }
  TensorInfo info;
  info.name = absl::StrCat(ShardTensorName(tensor.role, tensor.name), BoxText(box, tensor.shape));
  info.dtype = tensor.dtype;
  info.shape = box.size;
  if (entry.count != elements) {
    absl::StrAppend(&info.name, "[", entry.first, ":", entry.first + entry.count, "]");
    info.shape = {static_cast<int64_t>(entry.count)};
  }
  return info;
}

}  // namespace

class ShardWriter::HashedFile {
 public:
  // `options` must outlive this object.
  HashedFile(std::unique_ptr<WritableFile> file, const ShardOptions& options)
      : file_(std::move(file)), options_(options) {}

  // `hash`, if not null, is set to the hash of `bytes` alone.
  absl::Status Append(absl::string_view bytes, std::string* hash) {
    Hasher hasher;
    while (!bytes.empty()) {
      absl::string_view chunk = bytes.substr(0, kChunkBytes);
      if (options_.before_write != nullptr) {
        RETURN_IF_ERROR(options_.before_write(chunk.size()));
      }
      file_hasher_.Add(chunk);
      if (hash != nullptr) hasher.Add(chunk);
      RETURN_IF_ERROR(file_->Append(chunk));
      num_bytes_ += chunk.size();
      RETURN_IF_ERROR(AdvanceWriteBack());
      bytes.remove_prefix(chunk.size());
    }
    if (hash != nullptr) *hash = hasher.Hex();
    return absl::OkStatus();
  }

  absl::StatusOr<ManifestFile> Finish(std::string name) {
    RETURN_IF_ERROR(file_->Sync());
    return ManifestFile{.name = std::move(name), .bytes = num_bytes_, .hash = file_hasher_.Hex()};
  }

 private:
  // Starts to write back the newest range, then waits until the range before it is written back.
  absl::Status AdvanceWriteBack() {
    if (num_bytes_ - started_ < options_.write_back_bytes) return absl::OkStatus();
    RETURN_IF_ERROR(file_->StartWriteBack(started_, num_bytes_));
    RETURN_IF_ERROR(awaited_ == started_ ? absl::OkStatus() : file_->AwaitWriteBack(awaited_, started_));
    awaited_ = std::exchange(started_, num_bytes_);
    return absl::OkStatus();
  }

  const std::unique_ptr<WritableFile> file_;
  const ShardOptions& options_;
  Hasher file_hasher_;
  uint64_t num_bytes_ = 0;
  uint64_t started_ = 0, awaited_ = 0;  // the write-back was started, and awaited, up to these bytes
};

std::string ShardName(uint64_t rank) { return absl::StrFormat("shard-%05d.safetensors", rank); }

std::string ShardTensorName(absl::string_view role, absl::string_view name) {
  return role == kParameterRole || role == kCopyRole ? std::string(name) : absl::StrCat("optimizer.", role, ".", name);
}

Box BoxOf(const ShardEntry& entry) { return entry.box.size.empty() ? WholeBox(entry.tensor.shape) : entry.box; }

std::vector<ManifestPiece> CutIntoPieces(const ShardEntry& entry, uint64_t piece_bytes) {
  const uint64_t width = std::max<uint64_t>(1, DtypeBytes(entry.tensor.dtype));
  const uint64_t piece_elements = std::max<uint64_t>(1, piece_bytes / width);
  const Box box = BoxOf(entry);
  std::vector<ManifestPiece> pieces;
  for (uint64_t at = 0; at < entry.count || pieces.empty(); at += piece_elements) {
    ManifestPiece& piece = pieces.emplace_back();
    piece.start = box.start;
    piece.size = box.size;
    piece.first_element = entry.first + at;
    piece.last_element = entry.first + std::min(entry.count, at + piece_elements);
  }
  return pieces;
}

EntryHashes HashEntry(const ShardEntry& entry, absl::string_view bytes, uint64_t piece_bytes) {
  EntryHashes result{.nonfinite = HasNonfinite(entry.tensor.dtype, bytes)};
  const uint64_t width = DtypeBytes(entry.tensor.dtype);
  for (const ManifestPiece& piece : CutIntoPieces(entry, piece_bytes)) {
    result.pieces.push_back(HashHex(
        bytes.substr((piece.first_element - entry.first) * width, (piece.last_element - piece.first_element) * width)));
  }
  return result;
}

bool HasNonfinite(absl::string_view dtype, absl::string_view bytes) {
  if (dtype == "F32") return AnyNonfinite<uint32_t>(bytes, 0x7F800000u);
  if (dtype == "F64") return AnyNonfinite<uint64_t>(bytes, uint64_t{0x7FF} << 52);
  if (dtype == "F16") return AnyNonfinite<uint16_t>(bytes, 0x7C00);
  if (dtype == "BF16") return AnyNonfinite<uint16_t>(bytes, 0x7F80);
  return false;
}

ShardWriter::ShardWriter(std::vector<ShardEntry> entries, ShardOptions options)
    : entries_(std::move(entries)), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(const std::string& folder, const std::string& name,
                                                                 std::vector<ShardEntry> entries,
                                                                 FileSystem& file_system, ShardOptions options) {
  std::unique_ptr<ShardWriter> writer(new ShardWriter(std::move(entries), std::move(options)));
  for (const ShardEntry& entry : writer->entries_) {
    ASSIGN_OR_RETURN(TensorInfo info, InfoOf(entry));
    writer->infos_.push_back(std::move(info));
  }
  const std::string header = SafetensorsHeader(writer->infos_, {{"format", "pt"}});
  writer->data_begins_ = header.size();
  writer->written_.file.name = name;
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, file_system.Create(JoinPath(folder, name)));
  writer->file_ = std::make_shared<HashedFile>(std::move(file), writer->options_);
  RETURN_IF_ERROR(writer->file_->Append(header, nullptr));
  return writer;
}

absl::Status ShardWriter::Append(absl::string_view bytes, const EntryHashes* hashes) {
  const size_t i = written_.tensors.size();
  if (i == entries_.size()) return absl::InternalError("more entries were appended than were passed to Create");
  const TensorHeader& tensor = entries_[i].tensor;
  const uint64_t expected = infos_[i].end - infos_[i].begin;
  if (bytes.size() != expected) return WrongSize(tensor, expected, bytes.size());
  if (written_.nonfinite.size() < kNonfiniteListed &&
      (hashes != nullptr ? hashes->nonfinite : HasNonfinite(tensor.dtype, bytes))) {
    written_.nonfinite.push_back(absl::StrCat(tensor.role, " '", tensor.name, "'"));
  }
  ManifestTensor entry{.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
  entry.pieces = CutIntoPieces(entries_[i], options_.piece_bytes);
  if (hashes != nullptr && hashes->pieces.size() != entry.pieces.size()) {
    return absl::InternalError(absl::StrCat("tensor '", tensor.name, "' was hashed in ", hashes->pieces.size(),
                                            " pieces, but is written in ", entry.pieces.size()));
  }
  uint64_t at = infos_[i].begin;
  for (size_t p = 0; p < entry.pieces.size(); ++p) {
    ManifestPiece& piece = entry.pieces[p];
    const uint64_t length = (piece.last_element - piece.first_element) * DtypeBytes(tensor.dtype);
    piece.file = written_.file.name;
    piece.first_byte = data_begins_ + at;
    piece.last_byte = piece.first_byte + length;
    if (hashes != nullptr) piece.hash = hashes->pieces[p];
    RETURN_IF_ERROR(
        file_->Append(bytes.substr(at - infos_[i].begin, length), hashes == nullptr ? &piece.hash : nullptr));
    at += length;
  }
  written_.tensors.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<WrittenShard> ShardWriter::Finish() {
  if (written_.tensors.size() < entries_.size()) {
    return absl::InternalError(absl::StrCat("only ", written_.tensors.size(), " of ", entries_.size(),
                                            " entries of the file ", written_.file.name, " were appended"));
  }
  ASSIGN_OR_RETURN(written_.file, file_->Finish(written_.file.name));
  return std::move(written_);
}

}  // namespace trainyard
