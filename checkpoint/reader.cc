#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/read_error.h"
#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

std::vector<uint64_t> Strides(const std::vector<int64_t>& size) {
  std::vector<uint64_t> strides(size.size(), 1);
  for (size_t d = size.size(); d-- > 1;) strides[d - 1] = strides[d] * static_cast<uint64_t>(size[d]);
  return strides;
}

// Copies the intersection of `piece` and `box`, one row of the last dimension at a time.
void CopyOverlap(const ManifestPiece& piece, const char* source, const Box& box, uint64_t element_bytes, char* out) {
  const size_t dims = box.size.size();
  std::vector<int64_t> low(dims), high(dims);
  for (size_t d = 0; d < dims; ++d) {
    low[d] = std::max(piece.start[d], box.start[d]);
    high[d] = std::min(piece.start[d] + piece.size[d], box.start[d] + box.size[d]);
    if (low[d] >= high[d]) return;
  }
  const std::vector<uint64_t> from_strides = Strides(piece.size), to_strides = Strides(box.size);
  if (piece.first_element == piece.last_element) return;
  if (dims > 0) {  // only the rows of which the piece has elements
    const auto row_of = [&](uint64_t element) {
      return piece.start[0] + static_cast<int64_t>(element / from_strides[0]);
    };
    low[0] = std::max(low[0], row_of(piece.first_element));
    high[0] = std::min(high[0], row_of(piece.last_element - 1) + 1);
    if (low[0] >= high[0]) return;
  }
  const uint64_t row_elements = dims == 0 ? 1 : static_cast<uint64_t>(high[dims - 1] - low[dims - 1]);
  std::vector<int64_t> at = low;
  while (true) {
    uint64_t from = 0, to = 0;
    for (size_t d = 0; d < dims; ++d) {
      from += static_cast<uint64_t>(at[d] - piece.start[d]) * from_strides[d];
      to += static_cast<uint64_t>(at[d] - box.start[d]) * to_strides[d];
    }
    // The piece may contain only a part of this row.
    uint64_t first = std::max(from, piece.first_element), last = std::min(from + row_elements, piece.last_element);
    if (first < last) {
      std::memcpy(out + (to + first - from) * element_bytes, source + (first - piece.first_element) * element_bytes,
                  (last - first) * element_bytes);
    }
    size_t d = dims;
    while (d-- > 0) {
      if (d + 1 == dims) continue;  // the row itself
      if (++at[d] < high[d]) break;
      at[d] = low[d];
    }
    if (d == static_cast<size_t>(-1)) return;
  }
}

Box BoxOfPiece(const ManifestPiece& piece) { return {.start = piece.start, .size = piece.size}; }

// A range to read: elements [first, last) of `box`, which are the elements of `parts`, one after another.
struct Wanted {
  const Box& box;
  uint64_t first = 0;
  uint64_t last = 0;
  std::vector<Box> parts;
};

// Whether the piece has an element of the range.
bool Overlaps(const ManifestPiece& piece, const Wanted& wanted) {
  const Box box = BoxOfPiece(piece);
  if (piece.first_element == piece.last_element || !Intersect(box, wanted.box)) return false;
  if (box == wanted.box) return piece.first_element < wanted.last && wanted.first < piece.last_element;
  const std::vector<Box> of_piece = BoxesOfRange(box, static_cast<int64_t>(piece.first_element),
                                                 static_cast<int64_t>(piece.last_element - piece.first_element));
  return std::any_of(of_piece.begin(), of_piece.end(), [&](const Box& a) {
    return std::any_of(wanted.parts.begin(), wanted.parts.end(), [&](const Box& b) { return Intersect(a, b); });
  });
}

// Copies the elements of the range that are in `piece`, whose bytes are at `source`, to their places in `out`.
void CopyWanted(const ManifestPiece& piece, const char* source, const Wanted& wanted, uint64_t element_bytes,
                char* out) {
  if (BoxOfPiece(piece) == wanted.box) {
    const uint64_t low = std::max(piece.first_element, wanted.first), high = std::min(piece.last_element, wanted.last);
    if (low >= high) return;
    std::memcpy(out + (low - wanted.first) * element_bytes, source + (low - piece.first_element) * element_bytes,
                (high - low) * element_bytes);
    return;
  }
  for (const Box& part : wanted.parts) {
    CopyOverlap(piece, source, part, element_bytes, out);
    out += static_cast<uint64_t>(CountIn(part)) * element_bytes;
  }
}

absl::Status FirstProblem(const std::vector<CheckpointProblem>& problems, const std::string& path) {
  if (problems.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(FailedReadOf(problems));
  const auto damage = std::find_if(problems.begin(), problems.end(),
                                   [](const CheckpointProblem& problem) { return problem.failed_read.ok(); });
  return absl::DataLossError(absl::StrCat(damage->Text(path), AndMore(1, problems.size(), "; ", "problem")));
}

// Each file is hashed as a whole by the share with this number, modulo the number of shares. For a shard, the number is
// the rank that wrote it: the same rank most likely reads the shard anyway.
uint64_t ShareOf(absl::string_view name, size_t index) {
  uint64_t rank = 0;
  const bool is_shard = absl::ConsumePrefix(&name, "shard-") && absl::ConsumeSuffix(&name, ".safetensors") &&
                        absl::SimpleAtoi(name, &rank);
  return is_shard ? rank : index;
}

}  // namespace

Checkpoint::Checkpoint() = default;
Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenManifest(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  ASSIGN_OR_RETURN(checkpoint->lease_, MarkFailedRead(CheckpointLease::ToRead(path)));
  ASSIGN_OR_RETURN(const std::string text, MarkFailedRead(ReadManifestText(path)));
  ASSIGN_OR_RETURN(checkpoint->manifest_, ParseManifest(text), << path);
  checkpoint->manifest_hash_ = ManifestHash(text);
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenManifest(path));
  RETURN_IF_ERROR(checkpoint->OpenFiles(VerifyFiles(path, checkpoint->manifest_, {})));
  return checkpoint;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenUnverified(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenManifest(path));
  RETURN_IF_ERROR(checkpoint->OpenFiles(QuickVerifyFiles(path, checkpoint->manifest_)));
  return checkpoint;
}

absl::Status Checkpoint::OpenFiles(const std::vector<CheckpointProblem>& problems) {
  RETURN_IF_ERROR(FirstProblem(problems, path_));
  for (const ManifestFile& listed : manifest_.files) {
    ASSIGN_OR_RETURN(files_[listed.name], ShardFile::Open(path_, listed));
  }
  return absl::OkStatus();
}

void Checkpoint::BeginVerifying(int share, int shares) {
  // Copies of the weights (checkpoint.weights_copy) are not verified. No job resumes from them, so damage in them must
  // not make the checkpoint unusable.
  absl::flat_hash_set<std::string> state_files;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    if (tensor.role == kCopyRole) continue;
    for (const ManifestPiece& piece : tensor.pieces) state_files.insert(piece.file);
  }
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    const std::string& name = manifest_.files[i].name;
    if (!state_files.contains(name)) continue;
    if (ShareOf(name, i) % static_cast<uint64_t>(shares) == static_cast<uint64_t>(share))
      files_.at(name)->BeginVerifying();
  }
}

absl::Status Checkpoint::FinishVerifying() {
  for (const ManifestFile& listed : manifest_.files) {
    ShardFile& file = *files_.at(listed.name);
    if (!file.verifying()) continue;
    absl::Status verified = file.FinishVerifying();
    if (verified.ok()) continue;
    // Each piece that was read has matched its hash, so the damage is elsewhere in the file. Reads the file again,
    // piece by piece, to find the damaged tensor.
    RETURN_IF_ERROR(FirstProblem(VerifyFile(path_, manifest_, listed), path_));
    return verified;
  }
  return absl::OkStatus();
}

uint64_t Checkpoint::bytes_read() const {
  uint64_t bytes = 0;
  for (const auto& [name, file] : files_) bytes += file->bytes_read();
  return bytes;
}

absl::StatusOr<const ManifestTensor*> Checkpoint::Find(absl::string_view role, absl::string_view name) const {
  for (const ManifestTensor& tensor : manifest_.tensors) {
    if (tensor.role == role && tensor.name == name) return &tensor;
  }
  return absl::NotFoundError(absl::StrCat(path_, " contains no ", role, " '", name, "'"));
}

absl::StatusOr<const ManifestTensor*> Checkpoint::FindMatching(absl::string_view role, absl::string_view name,
                                                               absl::string_view dtype,
                                                               const std::vector<int64_t>& shape) const {
  ASSIGN_OR_RETURN(const ManifestTensor* tensor, Find(role, name));
  if (tensor->dtype == dtype && tensor->shape == shape) return tensor;
  return absl::FailedPreconditionError(absl::StrCat(path_, ": ", role, " '", name, "' is ", tensor->dtype, " ",
                                                    ShapeText(tensor->shape), ", this job needs ", dtype, " ",
                                                    ShapeText(shape)));
}

absl::Status Checkpoint::ReadPiece(const ManifestTensor& tensor, const ManifestPiece& piece,
                                   absl::FunctionRef<void(const ManifestPiece& range, const char* bytes)> visit) const {
  ShardFile& file = *files_.at(piece.file);
  const uint64_t element_bytes = DtypeBytes(tensor.dtype), chunk_elements = kReadBytes / element_bytes;
  const uint64_t buffer_bytes = std::min(chunk_elements, piece.last_element - piece.first_element) * element_bytes;
  const auto buffer = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  Hasher hasher;
  ManifestPiece range{.file = piece.file, .start = piece.start, .size = piece.size};
  for (uint64_t first = piece.first_element; first < piece.last_element; first += chunk_elements) {
    range.first_element = first;
    range.last_element = std::min(first + chunk_elements, piece.last_element);
    const uint64_t length = (range.last_element - first) * element_bytes;
    RETURN_IF_ERROR(
        file.Read(piece.first_byte + (first - piece.first_element) * element_bytes, {buffer.get(), length}));
    hasher.Add({buffer.get(), length});
    visit(range, buffer.get());
  }
  if (hasher.Hex() == piece.hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": the bytes of ", tensor.role, " '", tensor.name, "' in ", piece.file,
                                          " do not have the hash in the manifest"));
}

absl::Status Checkpoint::ReadTensor(absl::string_view role, absl::string_view name, absl::string_view dtype,
                                    const std::vector<int64_t>& shape, absl::Span<char> out) const {
  RETURN_IF_ERROR(FindMatching(role, name, dtype, shape));
  return ReadBox(role, name, {.start = std::vector<int64_t>(shape.size(), 0), .size = shape}, out);
}

absl::Status Checkpoint::ReadRange(absl::string_view role, absl::string_view name, absl::string_view dtype,
                                   const std::vector<int64_t>& shape, int64_t first, int64_t count,
                                   absl::Span<char> out) const {
  return ReadBoxRange(role, name, dtype, shape, WholeBox(shape), first, count, out);
}

absl::Status Checkpoint::ReadBoxRange(absl::string_view role, absl::string_view name, absl::string_view dtype,
                                      const std::vector<int64_t>& shape, const Box& box, int64_t first, int64_t count,
                                      absl::Span<char> out) const {
  ASSIGN_OR_RETURN(const ManifestTensor* tensor, FindMatching(role, name, dtype, shape));
  return ReadRangeOf(*tensor, box, first, count, out);
}

absl::Status Checkpoint::ReadBox(absl::string_view role, absl::string_view name, const Box& box,
                                 absl::Span<char> out) const {
  ASSIGN_OR_RETURN(const ManifestTensor* tensor, Find(role, name));
  return ReadRangeOf(*tensor, box, 0, IsWithin(box, tensor->shape) ? CountIn(box) : 0, out);
}

absl::Status Checkpoint::ReadRangeOf(const ManifestTensor& tensor, const Box& box, int64_t first, int64_t count,
                                     absl::Span<char> out) const {
  const uint64_t element_bytes = DtypeBytes(tensor.dtype);
  const int64_t elements = IsWithin(box, tensor.shape) ? CountIn(box) : -1;
  if (first < 0 || count < 0 || first > elements || count > elements - first ||
      out.size() != static_cast<uint64_t>(count) * element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", count, " elements, beginning with element ", first,
                                                   ", of the box at ", ShapeText(box.start), " of size ",
                                                   ShapeText(box.size), " of '", tensor.name, "' ",
                                                   ShapeText(tensor.shape), " into ", out.size(), " bytes"));
  }
  const Wanted wanted{.box = box,
                      .first = static_cast<uint64_t>(first),
                      .last = static_cast<uint64_t>(first + count),
                      .parts = BoxesOfRange(box, first, count)};
  for (const ManifestPiece& piece : tensor.pieces) {
    if (!Overlaps(piece, wanted)) continue;
    RETURN_IF_ERROR(ReadPiece(tensor, piece, [&](const ManifestPiece& range, const char* bytes) {
      CopyWanted(range, bytes, wanted, element_bytes, out.data());
    }));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
