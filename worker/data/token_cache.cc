#include "worker/data/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "worker/data/token_chunk.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kRootName[] = ".trainyard-tokens";
constexpr char kRootInRun[] = ".trainyard/tokens";
constexpr char kIndexName[] = "index.json";
constexpr char kTemporaryPrefix[] = ".making-";
constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;
constexpr uint64_t kNoteBytesMax = 4096;
// A text that cannot be cut becomes one chunk, of any size that fits into memory.
constexpr uint64_t kChunkBytesMax = uint64_t{1} << 40;
// The number of attempts to write a file: a builder that starts between the creation and the locking of a temporary
// file removes that file, which must then be written again.
constexpr int kTries = 3;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void RemoveAbandoned(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!absl::StartsWith(it->path().filename().string(), kTemporaryPrefix)) continue;
    const Descriptor file(open(it->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(it->path().c_str());
  }
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", path));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("cannot sync ", path));
}

// Writes a file that appears under its name only when it is complete. If a file of that name exists, it is replaced if
// `replaces` is true, and kept otherwise. NotFound: another builder has removed the temporary file.
absl::Status WriteOnce(const std::string& folder, const std::string& path, absl::string_view bytes, bool replaces) {
  static std::atomic<uint64_t> counter{0};
  // Ranks of several hosts may have the same pid.
  const std::string unique =
      HashHex(absl::StrCat(HostName(), " ", getpid(), " ", ++counter, " ", absl::ToUnixNanos(absl::Now())));
  const std::string temporary = JoinPath(folder, absl::StrCat(kTemporaryPrefix, unique));
  const Descriptor file(
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kPrivateFileMode));
  if (file.get() < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", temporary));
  flock(file.get(), LOCK_EX | LOCK_NB);  // on a file system without locks, abandoned files are not removed
  absl::Status status = WriteAll(file.get(), bytes, temporary);
  if (status.ok()) {
    bool named = !replaces && (link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
    // A file that replaces another is renamed, and so is any file on a file system without hard links. All writers have
    // the same content, so replacing the file of another writer is harmless.
    if (!named) named = rename(temporary.c_str(), path.c_str()) == 0;
    if (!named) status = ErrnoStatus(errno, absl::StrCat("cannot name ", path));
  }
  unlink(temporary.c_str());
  return status;
}

absl::Status WriteAtOnce(const std::string& folder, const std::string& path, absl::string_view bytes, bool replaces) {
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    status = WriteOnce(folder, path, bytes, replaces);
    if (!absl::IsNotFound(status)) break;
  }
  RETURN_IF_ERROR(status);
  return SyncFolder(folder);
}

std::string NotePath(const std::string& root, const std::string& host, const std::string& identity) {
  return JoinPath(root, absl::StrCat("files-", HashHex(absl::StrCat(host, "\n", identity))));
}

}  // namespace

std::vector<std::string> TokenCacheRoots(const std::string& run_folder) {
  fs::path folder = fs::path(run_folder).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "/runs/a/"
  const std::string root = JoinPath(folder.parent_path().string(), kRootName);
  return {root, absl::StrCat(root, "-", geteuid()), JoinPath(folder.string(), kRootInRun)};
}

size_t RootNextToRun(const std::vector<std::string>& roots) {
  struct stat info = {};
  return stat(roots[0].c_str(), &info) == 0 && info.st_uid != geteuid() ? 1 : 0;
}

absl::Status MakeCacheRoot(const std::string& root) {
  RETURN_IF_ERROR(MakeFolders(root));
  // Unlike the mode of the folder, this also shows a file system that is mounted read-only, even to root.
  if (access(root.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot write to ", root));
}

absl::StatusOr<TokenCacheFolder> TokenCacheFolder::Make(const std::string& path) {
  RETURN_IF_ERROR(MakeFolders(path));
  RemoveAbandoned(path);
  return TokenCacheFolder(path);
}

std::string TokenCacheFolder::ChunkPath(size_t chunk) const {
  return JoinPath(path_, absl::StrFormat("%05d.chunk", chunk));
}

bool TokenCacheFolder::HasChunk(size_t chunk) const { return FileExists(ChunkPath(chunk)); }

bool TokenCacheFolder::RemoveIfDamaged(size_t chunk) const {
  const absl::StatusOr<std::string> bytes = ReadRegularFile(ChunkPath(chunk), kChunkBytesMax);
  // A chunk that was cut off lacks its hash, like one of an earlier version, but its size contradicts its header.
  if (!bytes.ok() || (HasGoodHash(*bytes) && TokenChunk::Parse(*bytes).ok())) return false;
  unlink(ChunkPath(chunk).c_str());
  return true;
}

absl::Status TokenCacheFolder::PublishChunk(size_t chunk, absl::string_view bytes) const {
  return HasChunk(chunk) ? absl::OkStatus() : WriteAtOnce(path_, ChunkPath(chunk), bytes, /*replaces=*/false);
}

absl::StatusOr<std::vector<uint64_t>> TokenCacheFolder::ChunkSizes(size_t num_chunks) const {
  std::vector<uint64_t> sizes;
  for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
    struct stat info = {};
    const std::string path = ChunkPath(chunk);
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
    sizes.push_back(static_cast<uint64_t>(info.st_size));
  }
  return sizes;
}

bool TokenCacheFolder::IsComplete(size_t num_chunks) const {
  const absl::StatusOr<std::string> text = ReadRegularFile(JoinPath(path_, kIndexName), kIndexBytesMax);
  if (!text.ok()) return false;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const absl::StatusOr<std::vector<uint64_t>> sizes = ChunkSizes(num_chunks);
  return sizes.ok() && json.is_object() && json.contains("chunk_bytes") && json["chunk_bytes"] == Json(*sizes);
}

absl::Status TokenCacheFolder::PublishIndex(size_t num_chunks) const {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> sizes, ChunkSizes(num_chunks));
  const std::string text = Json{{"chunk_bytes", sizes}}.dump() + "\n";
  return WriteAtOnce(path_, JoinPath(path_, kIndexName), text, /*replaces=*/true);
}

std::string RecordedContent(const std::string& root, const std::string& host, const std::string& identity) {
  const absl::StatusOr<std::string> text = ReadRegularFile(NotePath(root, host, identity), kNoteBytesMax);
  const bool is_hash = text.ok() && text->size() == 32 && text->find_first_not_of("0123456789abcdef") == text->npos;
  return is_hash ? *text : "";
}

absl::Status RecordContent(const std::string& root, const std::string& host, const std::string& identity,
                           const std::string& content_hash) {
  return WriteAtOnce(root, NotePath(root, host, identity), content_hash, /*replaces=*/true);
}

}  // namespace trainyard
