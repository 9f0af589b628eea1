#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/manifest_file.h"
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

// Appends the boxes that make up elements [first, first + count) of `shape`, in row-major order. In each dimension the
// range consists of the end of a row, whole rows, and the beginning of a row, each of which may be missing. The
// recursion goes from the outermost dimension inwards: `at` holds the indices of the outer dimensions, and `first`
// counts from there.
void AddBoxes(const std::vector<int64_t>& shape, std::vector<int64_t> at, int64_t first, int64_t count,
              std::vector<Box>& boxes) {
  if (count == 0) return;
  const size_t d = at.size();
  if (d == shape.size()) {
    boxes.push_back({.start = at, .size = std::vector<int64_t>(d, 1)});
    return;
  }
  int64_t row = 1;
  for (size_t i = d + 1; i < shape.size(); ++i) row *= shape[i];
  auto part = [&](int64_t index, int64_t from, int64_t number) {
    std::vector<int64_t> inner = at;
    inner.push_back(index);
    AddBoxes(shape, std::move(inner), from, number, boxes);
  };
  if (first % row != 0) {
    const int64_t head = std::min(count, row - first % row);
    part(first / row, first % row, head);
    first += head;
    count -= head;
  }
  if (const int64_t rows = count / row; rows > 0) {
    Box box{.start = at, .size = std::vector<int64_t>(d, 1)};
    box.start.push_back(first / row);
    box.start.resize(shape.size(), 0);
    box.size.push_back(rows);
    box.size.insert(box.size.end(), shape.begin() + static_cast<long>(d) + 1, shape.end());
    boxes.push_back(std::move(box));
    first += rows * row;
    count -= rows * row;
  }
  if (count > 0) part(first / row, 0, count);
}

uint64_t CountOf(const Box& box) {
  uint64_t count = 1;
  for (int64_t side : box.size) count *= static_cast<uint64_t>(side);
  return count;
}

// Whether the box of the piece is the whole tensor. The piece itself may be only a range of the elements of its box.
bool SpansTensor(const ManifestPiece& piece, const ManifestTensor& tensor) {
  return piece.size == tensor.shape;  // a box of this size within the tensor starts where the tensor starts
}

// Returns the index in the tensor of the box's first element, and the index after its last one. The box need not
// contain all elements in between.
std::pair<uint64_t, uint64_t> Bounds(const std::vector<int64_t>& start, const std::vector<int64_t>& size,
                                     const std::vector<int64_t>& shape) {
  const std::vector<uint64_t> strides = Strides(shape);
  uint64_t first = 0, last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (size[d] == 0) return {0, 0};
    first += static_cast<uint64_t>(start[d]) * strides[d];
    last += static_cast<uint64_t>(start[d] + size[d] - 1) * strides[d];
  }
  return {first, last + 1};
}

// Whether a piece may contain an element in [first, last) of the tensor.
bool MayOverlap(const ManifestPiece& piece, const ManifestTensor& tensor, uint64_t first, uint64_t last) {
  if (piece.first_element == piece.last_element) return false;
  if (SpansTensor(piece, tensor)) return piece.first_element < last && first < piece.last_element;
  const auto [lowest, end] = Bounds(piece.start, piece.size, tensor.shape);
  return lowest < last && first < end;
}

absl::Status FirstProblem(const std::vector<CheckpointProblem>& problems, const std::string& path) {
  if (problems.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(problems[0].Text(path), AndMore(1, problems.size(), "; ", "problem")));
}

// Returns the share that hashes the whole file: for a shard the one of its rank, which most likely reads it anyway.
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
  ASSIGN_OR_RETURN(checkpoint->lease_, CheckpointLease::ToRead(path));
  ASSIGN_OR_RETURN(std::string text, ReadManifestText(path));
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
  // Copies of the weights (checkpoint.weights_copy) are not verified: no job resumes from them, so damage in them must
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
    // Reads the file again, piece by piece, to find the damaged tensor: the pieces that were read before match their
    // hashes.
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
  ASSIGN_OR_RETURN(const ManifestTensor* tensor, FindMatching(role, name, dtype, shape));
  const uint64_t element_bytes = DtypeBytes(dtype);
  ASSIGN_OR_RETURN(uint64_t elements, CountElements(shape));
  if (first < 0 || count < 0 || static_cast<uint64_t>(first) > elements ||
      static_cast<uint64_t>(count) > elements - static_cast<uint64_t>(first) ||
      out.size() != static_cast<uint64_t>(count) * element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", count, " elements, beginning with element ", first,
                                                   ", of '", name, "' ", ShapeText(shape), " into ", out.size(),
                                                   " bytes"));
  }
  std::vector<Box> boxes;
  AddBoxes(shape, {}, first, count, boxes);
  const uint64_t from = static_cast<uint64_t>(first), to = from + static_cast<uint64_t>(count);
  for (const ManifestPiece& piece : tensor->pieces) {
    if (!MayOverlap(piece, *tensor, from, to)) continue;
    RETURN_IF_ERROR(ReadPiece(*tensor, piece, [&](const ManifestPiece& range, const char* bytes) {
      if (SpansTensor(piece, *tensor)) {
        const uint64_t low = std::max(range.first_element, from), high = std::min(range.last_element, to);
        if (low >= high) return;
        std::memcpy(out.data() + (low - from) * element_bytes, bytes + (low - range.first_element) * element_bytes,
                    (high - low) * element_bytes);
        return;
      }
      char* target = out.data();
      for (const Box& box : boxes) {
        CopyOverlap(range, bytes, box, element_bytes, target);
        target += CountOf(box) * element_bytes;
      }
    }));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadBox(absl::string_view role, absl::string_view name, const Box& box,
                                 absl::Span<char> out) const {
  ASSIGN_OR_RETURN(const ManifestTensor* tensor, Find(role, name));
  bool fits = box.start.size() == tensor->shape.size() && box.size.size() == tensor->shape.size();
  for (size_t d = 0; fits && d < box.size.size(); ++d) {
    fits = box.start[d] >= 0 && box.size[d] >= 0 && box.start[d] <= tensor->shape[d] &&
           box.size[d] <= tensor->shape[d] - box.start[d];
  }
  uint64_t element_bytes = DtypeBytes(tensor->dtype);
  const uint64_t elements = fits ? CountOf(box) : 0;
  if (!fits || out.size() != elements * element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read the box at ", ShapeText(box.start), " of size ",
                                                   ShapeText(box.size), " of '", name, "' ", ShapeText(tensor->shape),
                                                   " into ", out.size(), " bytes"));
  }
  const auto [first, last] = Bounds(box.start, box.size, tensor->shape);
  for (const ManifestPiece& piece : tensor->pieces) {
    if (!MayOverlap(piece, *tensor, first, last)) continue;
    RETURN_IF_ERROR(ReadPiece(*tensor, piece, [&](const ManifestPiece& range, const char* bytes) {
      CopyOverlap(range, bytes, box, element_bytes, out.data());
    }));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
