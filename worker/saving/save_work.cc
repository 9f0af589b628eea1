#include "worker/saving/save_work.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/fault_points.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// A save copies and hashes the state in chunks. A chunk that is copied has at most this many bytes; a chunk that is
// only hashed is a whole piece. One thread processes a chunk, and a save can be cancelled between two chunks.
constexpr uint64_t kCopyBytes = 1 << 20;

uint64_t BytesOf(const SaveRange& range) { return range.entry.count * DtypeBytes(range.entry.tensor.dtype); }

ManifestTensor EntryOf(const TensorHeader& tensor) {
  return {.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape};
}

// Returns the order of the file's ranges in its shard: those of wide types first, so that each tensor begins at a
// multiple of its element's size.
std::vector<size_t> OrderInShard(const SaveTask::File& file) {
  std::vector<size_t> order(file.ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return DtypeBytes(file.ranges[a].entry.tensor.dtype) > DtypeBytes(file.ranges[b].entry.tensor.dtype);
  });
  return order;
}

absl::Status WriteFile(FileSystem& file_system, SaveWork& work, size_t index,
                       const std::function<absl::Status(uint64_t)>& before_write, CheckpointPart& part) {
  const SaveTask::File& file = work.task.files[index];
  const std::vector<size_t> order = OrderInShard(file);
  std::vector<ShardEntry> entries;
  for (size_t i : order) entries.push_back(file.ranges[i].entry);
  ShardOptions options{.before_write = before_write};
  ASSIGN_OR_RETURN(
      std::unique_ptr<ShardWriter> shard,
      ShardWriter::Create(work.task.folder, file.name, std::move(entries), file_system, std::move(options)));
  const bool is_hashed = !work.entry_hashes.empty() && !file.derived;
  for (size_t i : order) {
    const SaveRange& range = file.ranges[i];
    RETURN_IF_ERROR(shard->Append({range.bytes, BytesOf(range)}, is_hashed ? &work.entry_hashes[index][i] : nullptr));
  }
  ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
  part.files.push_back(std::move(written.file));
  std::move(written.tensors.begin(), written.tensors.end(), std::back_inserter(part.tensors));
  if (file.derived) {
    // A derived file, such as a copy of the weights, may have a narrower type. A value beyond the range of that type is
    // intact in the tensor that the copy was made from, so the checkpoint does not count as nonfinite.
    if (!written.nonfinite.empty()) work.beyond_range = written.nonfinite.front();
    return absl::OkStatus();
  }
  std::move(written.nonfinite.begin(), written.nonfinite.end(), std::back_inserter(part.nonfinite));
  return absl::OkStatus();
}

}  // namespace

uint64_t BytesToCopy(const SaveTask& task) {
  uint64_t bytes = 0;
  for (const SaveTask::File& file : task.files) {
    for (const SaveRange& range : file.ranges) bytes += range.is_stable ? 0 : AlignedInSnapshot(BytesOf(range));
  }
  return bytes;
}

void PlanChunks(SaveWork& work) {
  char* to = work.buffer == nullptr ? nullptr : work.buffer->data();
  for (SaveTask::File& file : work.task.files) {
    for (SaveRange& range : file.ranges) {
      if (to == nullptr || range.is_stable) continue;
      for (uint64_t at = 0; at < BytesOf(range); at += kCopyBytes) {
        const uint64_t length = std::min(kCopyBytes, BytesOf(range) - at);
        work.chunks.push_back({range.bytes + at, to + at, length, nullptr});
      }
      range.bytes = to;
      to += AlignedInSnapshot(BytesOf(range));
    }
  }
  for (const SaveRange& range : work.task.witnessed) {
    work.witnessed.push_back(EntryOf(range.entry.tensor));
    work.witnessed.back().pieces = CutIntoPieces(range.entry);
  }
  for (size_t i = 0; i < work.witnessed.size(); ++i) {
    const SaveRange& range = work.task.witnessed[i];
    const uint64_t width = DtypeBytes(range.entry.tensor.dtype);
    for (ManifestPiece& piece : work.witnessed[i].pieces) {
      work.chunks.push_back({range.bytes + (piece.first_element - range.entry.first) * width, nullptr,
                             (piece.last_element - piece.first_element) * width, &piece.hash});
    }
  }
}

void ProcessChunk(const SaveWork::Chunk& chunk) {
  if (chunk.to != nullptr) {
    std::memcpy(chunk.to, chunk.from, chunk.bytes);
  } else {
    *chunk.hash = HashHex({chunk.from, chunk.bytes});
  }
}

absl::Status SealSnapshot(absl::string_view job_id, SaveWork& work) {
  CheckpointPart index{.save = work.task.save, .rank = work.task.rank, .witnessed = work.witnessed};
  std::vector<std::vector<EntryHashes>> entry_hashes;
  for (const SaveTask::File& file : work.task.files) {
    std::vector<EntryHashes>& of_file = entry_hashes.emplace_back();
    if (file.derived) continue;
    index.files.push_back({.name = file.name, .bytes = work.buffer->bytes()});
    for (const SaveRange& range : file.ranges) {
      const TensorHeader& tensor = range.entry.tensor;
      if (range.is_stable) return absl::UnimplementedError("a range of the state was not copied into the snapshot");
      EntryHashes& hashes = of_file.emplace_back(HashEntry(range.entry, {range.bytes, BytesOf(range)}));
      if (hashes.nonfinite && index.nonfinite.size() < kNonfiniteListed) {
        index.nonfinite.push_back(absl::StrCat(tensor.role, " '", tensor.name, "'"));
      }
      ManifestTensor& entry = index.tensors.emplace_back(EntryOf(tensor));
      entry.pieces = CutIntoPieces(range.entry);
      uint64_t at = static_cast<uint64_t>(range.bytes - work.buffer->data());
      for (size_t i = 0; i < entry.pieces.size(); ++i) {
        ManifestPiece& piece = entry.pieces[i];
        piece.file = file.name;
        piece.hash = hashes.pieces[i];
        piece.first_byte = at;
        at += (piece.last_element - piece.first_element) * DtypeBytes(tensor.dtype);
        piece.last_byte = at;
      }
    }
  }
  work.entry_hashes = std::move(entry_hashes);
  return work.buffer->snapshot()->Seal(job_id, index, work.task.snapshot_text);
}

namespace {

absl::Status WriteAll(FileSystem& file_system, SaveWork& work,
                      const std::function<absl::Status(uint64_t)>& before_write, uint64_t& bytes) {
  const SaveTask& task = work.task;
  RETURN_IF_ERROR(FaultPoint("snapshot"));
  if (task.may_write != nullptr) {
    RETURN_IF_ERROR(task.may_write());
  }
  if (task.is_retry) {
    // Rank 0 has removed the folder, but a disk that has failed may still list its files.
    for (const SaveTask::File& file : task.files) {
      RETURN_IF_ERROR(file_system.RemoveAll(JoinPath(task.folder, file.name)));
    }
    RETURN_IF_ERROR(file_system.RemoveAll(JoinPath(task.folder, PartName(task.rank))));
  }
  absl::Status made = file_system.MakeFolder(task.folder);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  CheckpointPart part{.save = task.save, .rank = task.rank};
  part.witnessed = std::move(work.witnessed);
  for (size_t i = 0; i < task.files.size(); ++i) {
    RETURN_IF_ERROR(WriteFile(file_system, work, i, before_write, part));
  }
  for (const ManifestFile& file : part.files) bytes += file.bytes;
  if (task.may_write != nullptr) {
    RETURN_IF_ERROR(task.may_write());
  }
  RETURN_IF_ERROR(before_write(0));
  return WriteCheckpointPart(task.folder, part, file_system);
}

}  // namespace

absl::Status WriteSave(FileSystem& file_system, SaveWork& work,
                       const std::function<absl::Status(uint64_t)>& before_write, uint64_t& bytes) {
  absl::Status status = WriteAll(file_system, work, before_write, bytes);
  if (status.ok()) return status;
  status = WithFreeSpace(std::move(status), work.task.folder);
  // Removes the files, which would otherwise use space on a disk that may be full.
  for (const SaveTask::File& file : work.task.files) {
    file_system.RemoveAll(JoinPath(work.task.folder, file.name)).IgnoreError();
  }
  return status;
}

}  // namespace trainyard
