#include "worker/saving/save_memory.h"

#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

std::string Megabytes(uint64_t bytes) { return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6); }

}  // namespace

absl::StatusOr<std::shared_ptr<SaveBuffer>> SaveBuffer::MakePrivate(uint64_t bytes) {
  if (bytes == 0) return std::shared_ptr<SaveBuffer>(new SaveBuffer(nullptr, 0));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        ErrnoStatus(errno, absl::StrCat("no memory for a copy of ", bytes, " bytes")).message());
  }
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += page) static_cast<volatile char*>(data)[at] = 0;
  return std::shared_ptr<SaveBuffer>(new SaveBuffer(static_cast<char*>(data), bytes));
}

absl::StatusOr<std::shared_ptr<SaveBuffer>> SaveBuffer::MakeShared(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<SnapshotBuffer> snapshot, SnapshotBuffer::Make(path, bytes));
  std::shared_ptr<SaveBuffer> buffer(new SaveBuffer(snapshot->contents(), bytes));
  buffer->snapshot_ = std::move(snapshot);
  return buffer;
}

SaveBuffer::~SaveBuffer() {
  if (snapshot_ == nullptr && data_ != nullptr) munmap(data_, bytes_);
}

absl::Status SaveMemory::ReservePrivate(uint64_t bytes) {
  if (buffers_[0] != nullptr && buffers_[0]->bytes() >= bytes) return absl::OkStatus();
  Drop();
  ASSIGN_OR_RETURN(buffers_[0], SaveBuffer::MakePrivate(bytes));
  return absl::OkStatus();
}

absl::Status SaveMemory::ReserveShared(const SnapshotPlace& place, uint64_t bytes) {
  Drop();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    absl::StatusOr<std::shared_ptr<SaveBuffer>> made =
        SaveBuffer::MakeShared(SnapshotPath(place, kSnapshotBuffers[i]), bytes);
    if (!made.ok()) {
      Drop();
      return made.status();
    }
    buffers_[i] = *std::move(made);
  }
  place_ = place;
  return absl::OkStatus();
}

void SaveMemory::Drop() {
  for (std::shared_ptr<SaveBuffer>& buffer : buffers_) {
    if (buffer != nullptr && buffer->snapshot() != nullptr) buffer->snapshot()->Remove();
    buffer.reset();
  }
}

uint64_t SaveMemory::reserved_bytes() const {
  uint64_t bytes = 0;
  for (const std::shared_ptr<SaveBuffer>& buffer : buffers_) bytes += buffer == nullptr ? 0 : buffer->bytes();
  return bytes;
}

std::shared_ptr<SaveBuffer> SaveMemory::Next(const SaveBuffer* newest_whole) const {
  return shared() && buffers_[0].get() == newest_whole ? buffers_[1] : buffers_[0];
}

SaveMemoryPlan PlanSaveMemory(const SaveMemoryFacts& facts) {
  const uint64_t one_copy_bytes = facts.bytes * static_cast<uint64_t>(std::max(1, facts.local_ranks));
  const uint64_t usable_bytes = static_cast<uint64_t>(std::max<int64_t>(0, facts.available_bytes)) / 2;
  const bool known = facts.available_bytes > 0;
  SaveMemoryPlan plan{.shared = true, .one_copy = !known || one_copy_bytes < usable_bytes};
  const std::string needed =
      absl::StrCat("two copies for ", facts.local_ranks, facts.local_ranks == 1 ? " rank" : " ranks",
                   " on this host need ", Megabytes(2 * one_copy_bytes));
  if (facts.folder_bytes < 0) {
    plan.why_not_shared = "there is no folder in shared memory for snapshots (--snapshots of the daemon)";
  } else if (2 * one_copy_bytes > static_cast<uint64_t>(facts.folder_bytes) / 2) {
    plan.why_not_shared = absl::StrCat(needed, ", but ", Megabytes(static_cast<uint64_t>(facts.folder_bytes)),
                                       " are free in the daemon's folder for snapshots, of which half may be used");
  } else if (known && 2 * one_copy_bytes >= usable_bytes) {
    plan.why_not_shared = absl::StrCat(needed, ", but ", Megabytes(static_cast<uint64_t>(facts.available_bytes)),
                                       " of memory are available, of which half may be used");
  }
  plan.shared = plan.why_not_shared.empty();
  return plan;
}

int64_t FreeBytesOf(const std::string& folder) {
  struct statvfs disk;
  if (folder.empty() || access(folder.c_str(), W_OK | X_OK) != 0 || statvfs(folder.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

}  // namespace trainyard
