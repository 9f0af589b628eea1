#include "checkpoint/snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "checkpoint/snapshot_format.h"
#include "common/allocate_now.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using snapshot_format::Header;
using snapshot_format::kHeaderBytes;

// The number of bytes that Verify reads at a time.
constexpr uint64_t kVerifyChunkBytes = 4 << 20;

// The job and the generation in a name such as "k3vq7a2p.g2.r0.a".
struct SnapshotName {
  std::string job_id;
  uint64_t generation = 0;
};
// None: the name has another form.
std::optional<SnapshotName> ParseName(const std::string& name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  SnapshotName named;
  if (parts.size() != 4 || !absl::ConsumePrefix(&parts[1], "g") || !absl::SimpleAtoi(parts[1], &named.generation)) {
    return std::nullopt;
  }
  named.job_id = std::string(parts[0]);
  return named;
}

void PutHash(char (&field)[snapshot_format::kHashDigits], const std::string& hash) {
  std::memcpy(field, hash.data(), std::min(sizeof field, hash.size()));
}
absl::string_view HashIn(const char (&field)[snapshot_format::kHashDigits]) { return {field, sizeof field}; }

// Keeps writes before this call in front of writes after it, because this process may be killed in between and another
// process then reads the file.
void SetState(char* data, uint32_t state) {
  std::atomic_ref<uint32_t>(reinterpret_cast<Header*>(data)->state).store(state, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

absl::Status WriteAt(int fd, absl::string_view bytes, uint64_t at, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", path));
    bytes.remove_prefix(static_cast<size_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

std::string SnapshotPath(const SnapshotPlace& place, char buffer) {
  return JoinPath(place.folder, absl::StrCat(place.job_id, ".g", place.generation, ".r", place.rank, ".",
                                             absl::string_view(&buffer, 1)));
}

absl::StatusOr<std::unique_ptr<SnapshotBuffer>> SnapshotBuffer::Make(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", path));
  const uint64_t all = kHeaderBytes + bytes;
  const int error = AllocateNow(fd, all);
  void* data = error == 0 ? mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0) : MAP_FAILED;
  if (data == MAP_FAILED) {
    absl::Status failed =
        ErrnoStatus(error != 0 ? error : errno, absl::StrCat("no space for ", all, " bytes in ", path));
    unlink(path.c_str());
    close(fd);
    return failed;
  }
  auto buffer = std::unique_ptr<SnapshotBuffer>(new SnapshotBuffer(path, fd, static_cast<char*>(data), bytes));
  buffer->Begin();
  return buffer;
}

SnapshotBuffer::~SnapshotBuffer() {
  munmap(data_, kHeaderBytes + bytes_);
  close(fd_);
}

char* SnapshotBuffer::contents() const { return data_ + kHeaderBytes; }

void SnapshotBuffer::Begin() { SetState(data_, snapshot_format::kWriting); }

void SnapshotBuffer::Remove() { unlink(path_.c_str()); }

absl::Status SnapshotBuffer::Seal(absl::string_view job_id, const CheckpointPart& part, absl::string_view extra) {
  const std::string index = PartText(part);
  const std::string index_and_extra = absl::StrCat(index, extra);
  Header header = {};
  std::memcpy(header.magic, snapshot_format::kMagic, sizeof header.magic);
  header.version = snapshot_format::kVersion;
  header.state = snapshot_format::kComplete;
  header.contents_bytes = bytes_;
  header.index_begin = kHeaderBytes + bytes_;
  header.index_bytes = index.size();
  header.extra_bytes = extra.size();
  header.generation = part.save.generation;
  header.step = part.save.step;
  header.world_size = part.save.world_size;
  header.rank = part.rank;
  if (job_id.size() >= sizeof header.job_id) {
    return absl::InvalidArgumentError(absl::StrCat("the job id of ", path_, " has ", job_id.size(),
                                                   " characters; the limit is ", sizeof header.job_id - 1));
  }
  if (index_and_extra.size() > snapshot_format::kIndexBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the index of ", path_, " has ", index_and_extra.size(),
                                                     " bytes; the limit is ", snapshot_format::kIndexBytesMax));
  }
  std::memcpy(header.job_id, job_id.data(), job_id.size());
  PutHash(header.index_hash, HashHex(index_and_extra));
  PutHash(header.header_hash, HashHex(snapshot_format::HashedBytes(header)));
  RETURN_IF_ERROR(WriteAt(fd_, index_and_extra, header.index_begin, path_));
  header.state = snapshot_format::kWriting;
  std::memcpy(data_, &header, sizeof header);
  SetState(data_, snapshot_format::kComplete);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Snapshot>> Snapshot::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  auto snapshot = std::unique_ptr<Snapshot>(new Snapshot(path, fd));
  RETURN_IF_ERROR(snapshot->ReadIndex()) << path;
  return snapshot;
}

Snapshot::~Snapshot() { close(fd_); }

absl::Status Snapshot::ReadAt(uint64_t at, absl::Span<char> out) const {
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path_));
    if (n == 0) return absl::DataLossError(absl::StrCat("it ends at byte ", at + done));
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Snapshot::ReadIndex() {
  Header header;
  struct stat st;
  if (fstat(fd_, &st) != 0) return ErrnoStatus(errno, "cannot inspect it");
  if (static_cast<uint64_t>(st.st_size) < kHeaderBytes) return absl::UnavailableError("it has no header yet");
  RETURN_IF_ERROR(ReadAt(0, {reinterpret_cast<char*>(&header), sizeof header}));
  if (header.state != snapshot_format::kComplete)
    return absl::UnavailableError("it is not complete: its writer has not finished");
  if (std::memcmp(header.magic, snapshot_format::kMagic, sizeof header.magic) != 0) {
    return absl::DataLossError("it is not a snapshot");
  }
  if (header.version != snapshot_format::kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("it is of version ", header.version, "; this program reads version ", snapshot_format::kVersion));
  }
  if (HashHex(snapshot_format::HashedBytes(header)) != HashIn(header.header_hash)) {
    return absl::DataLossError("its header is damaged");
  }
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  const bool fits = header.index_begin <= size && header.index_bytes <= snapshot_format::kIndexBytesMax &&
                    header.extra_bytes <= snapshot_format::kIndexBytesMax &&
                    header.index_bytes + header.extra_bytes <= size - header.index_begin &&
                    header.contents_bytes <= header.index_begin &&
                    kHeaderBytes == header.index_begin - header.contents_bytes &&
                    header.job_id[sizeof header.job_id - 1] == '\0';
  if (!fits) return absl::DataLossError("its header contradicts itself, or the file was truncated");
  std::string index_and_extra(header.index_bytes + header.extra_bytes, '\0');
  RETURN_IF_ERROR(ReadAt(header.index_begin, absl::MakeSpan(index_and_extra.data(), index_and_extra.size())));
  if (HashHex(index_and_extra) != HashIn(header.index_hash)) return absl::DataLossError("its index is damaged");
  ASSIGN_OR_RETURN(part_, ParsePart(absl::string_view(index_and_extra).substr(0, header.index_bytes)));
  const SaveKey save{.step = header.step, .generation = header.generation, .world_size = header.world_size};
  if (part_.save != save || part_.rank != header.rank)
    return absl::DataLossError("its header and its index are of different saves");
  job_id_ = header.job_id;
  extra_ = index_and_extra.substr(header.index_bytes);
  return CheckPieces(header.contents_bytes);
}

absl::Status Snapshot::CheckPieces(uint64_t contents_bytes) const {
  for (const ManifestTensor& tensor : part_.tensors) {
    const uint64_t width = DtypeBytes(tensor.dtype);
    for (const ManifestPiece& piece : tensor.pieces) {
      // Divides, because the product of the elements and their width may overflow.
      const uint64_t bytes = piece.last_byte - piece.first_byte;
      if (piece.first_byte <= piece.last_byte && piece.last_byte <= contents_bytes &&
          piece.first_element <= piece.last_element && width > 0 && bytes % width == 0 &&
          piece.last_element - piece.first_element == bytes / width) {
        continue;
      }
      return absl::DataLossError(
          absl::StrCat("its index contradicts itself about ", tensor.role, " '", tensor.name, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Read(const ManifestPiece& piece, absl::Span<char> out) const {
  if (out.size() != piece.last_byte - piece.first_byte)
    return absl::InternalError("the buffer for a piece has another size than the piece");
  RETURN_IF_ERROR(ReadAt(kHeaderBytes + piece.first_byte, out)) << path_;
  if (HashHex({out.data(), out.size()}) == piece.hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": bytes ", piece.first_byte, " to ", piece.last_byte,
                                          " do not match the hash in its index"));
}

absl::Status Snapshot::Verify() const {
  std::string chunk;
  for (const ManifestTensor& tensor : part_.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      Hasher hasher;
      for (uint64_t at = piece.first_byte; at < piece.last_byte; at += chunk.size()) {
        chunk.resize(std::min(kVerifyChunkBytes, piece.last_byte - at));
        RETURN_IF_ERROR(ReadAt(kHeaderBytes + at, absl::MakeSpan(chunk.data(), chunk.size()))) << path_;
        hasher.Add(chunk);
      }
      if (hasher.Hex() == piece.hash) continue;
      return absl::DataLossError(absl::StrCat(path_, ": elements [", piece.first_element, ", ", piece.last_element,
                                              ") of ", tensor.role, " '", tensor.name,
                                              "' do not match the hash in its index"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> ListSnapshots(const std::string& folder, absl::string_view job_id) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::optional<SnapshotName> named = ParseName(entry.path().filename().string());
    if (named.has_value() && named->job_id == job_id) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void RemoveOlderSnapshots(const std::string& folder, absl::string_view job_id, uint64_t generation) {
  for (const std::string& path : ListSnapshots(folder, job_id)) {
    if (ParseName(std::filesystem::path(path).filename().string())->generation < generation) unlink(path.c_str());
  }
}

}  // namespace trainyard
