#include "worker/agent/snapshot_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "worker/agent/inventory.h"

namespace trainyard::agent {
namespace {

constexpr char kLock[] = "lock";
constexpr char kRecord[] = "daemon";
constexpr char kPrivate[] = "private";
constexpr char kGone[] = ".gone";          // suffix of a folder that is being removed
constexpr char kNoteInState[] = "memory";  // file in the state folder that contains the path of the snapshot folder
constexpr uint64_t kRecordBytes = 64 << 10;
// The number of attempts to create the folder. Another daemon may remove it as abandoned while it is being created.
constexpr int kAttempts = 3;

// Returns the mount namespace, within which the paths of state folders are valid.
std::string ThisMountNamespace() {
  char name[256] = {};
  return readlink("/proc/self/ns/mnt", name, sizeof name - 1) > 0 ? name : "unknown";
}

std::string Prefix() { return absl::StrCat("trainyard-", getuid(), "-"); }

absl::Status CheckInMemory(const std::string& root) {
  struct statfs info;
  if (statfs(root.c_str(), &info) != 0) return ErrnoStatus(errno, root);
  if (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(root, " is not on a file system in memory"));
}

std::vector<std::filesystem::path> EntriesOf(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  return paths;
}

void RemoveFolder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::string RecordOf(const SnapshotFolderOptions& options) {
  return absl::StrCat(ThisHost(), "\n", options.state, "\n", options.is_private ? kPrivate : "comes back", "\n",
                      ThisMountNamespace(), "\n");
}

// Does not write a text that the file contains already, so that this succeeds on a full file system.
absl::Status Write(const std::string& path, const std::string& text) {
  absl::StatusOr<std::string> current = ReadFile(path, kRecordBytes);
  return current.ok() && *current == text ? absl::OkStatus() : WriteFileAtomically(path, text);
}

// Returns whether no later incarnation of the folder's daemon will need the folder. REQUIRES: that daemon is not
// running. A folder without a record was abandoned while it was being created.
bool IsAbandoned(const std::string& path) {
  absl::StatusOr<std::string> record = ReadFile(JoinPath(path, kRecord), kRecordBytes);
  if (!record.ok()) return absl::IsNotFound(record.status());
  const std::vector<std::string> lines = absl::StrSplit(*record, '\n');
  if (lines.size() < 4) return false;
  if (lines[2] == kPrivate) return true;
  struct stat info;
  return lines[0] == ThisHost() && lines[3] == ThisMountNamespace() && stat(lines[1].c_str(), &info) != 0 &&
         errno == ENOENT;
}

// Removes the folder if no process holds its lock. Renames it first, so that a folder of the same name that a daemon
// creates meanwhile is not removed.
void RemoveUnlessHeld(const std::string& path, const std::function<bool()>& may_remove) {
  if (!CheckPrivateFolder(path).ok()) return;
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(JoinPath(path, kLock), absl::ZeroDuration());
  if (!lock.ok() || !may_remove()) return;
  const std::string gone = absl::StrCat(path, kGone);
  RemoveFolder(gone);
  if (rename(path.c_str(), gone.c_str()) == 0) RemoveFolder(gone);
}

absl::StatusOr<std::unique_ptr<FileLock>> MakeAndLock(const std::string& path, const std::string& record) {
  RETURN_IF_ERROR(MakePrivateFolder(path));
  ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, FileLock::Acquire(JoinPath(path, kLock), limits::kTakeOverWait));
  RETURN_IF_ERROR(Write(JoinPath(path, kRecord), record));
  return lock;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SnapshotFolder>> SnapshotFolder::Find(const SnapshotFolderOptions& options) {
  if (!options.may_be_on_disk) {
    RETURN_IF_ERROR(CheckInMemory(options.root));
  }
  const std::string key = HashHex(absl::StrCat(ThisHost(), "\n", options.state)).substr(0, 16);
  const std::string path = JoinPath(options.root, absl::StrCat(Prefix(), key));
  auto folder = std::shared_ptr<SnapshotFolder>(new SnapshotFolder(path, RecordOf(options)));
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) {
    RETURN_IF_ERROR(folder->Make());
  }
  return folder;
}

absl::Status SnapshotFolder::Make() {
  absl::MutexLock lock(&make_mu_);
  if (lock_ != nullptr && IdOf(path_) == id_) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<FileLock>> made = MakeAndLock(path_, record_);
  for (int attempt = 1; attempt < kAttempts && absl::IsNotFound(made.status()); ++attempt) {
    made = MakeAndLock(path_, record_);
  }
  RETURN_IF_ERROR(made.status());
  lock_ = *std::move(made);
  id_ = IdOf(path_);
  return absl::OkStatus();
}

bool SnapshotFolder::SetJobs(std::set<std::string> jobs) {
  absl::MutexLock lock(&mu_);
  jobs_ = std::move(jobs);
  return !std::exchange(sweep_scheduled_, true);
}

void SnapshotFolder::Sweep() {
  {
    absl::MutexLock lock(&mu_);
    sweep_scheduled_ = false;
  }
  for (const std::filesystem::path& entry : EntriesOf(path_)) {
    const std::string name = entry.filename().string();
    if (name == kLock || name == kRecord) continue;
    // Removes only the name while the lock is held. Closing the descriptor then frees the memory, which may take
    // longer.
    const int fd = open(entry.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    {
      absl::MutexLock lock(&mu_);
      if (!jobs_.contains(name.substr(0, name.find('.')))) unlink(entry.c_str());
    }
    if (fd >= 0) close(fd);
  }
}

void SnapshotFolder::Remove() {
  absl::MutexLock lock(&make_mu_);
  if (lock_ != nullptr) RemoveFolder(path_);
  lock_ = nullptr;
}

void RemoveAbandonedFolders(const SnapshotFolderOptions& options, const std::string& path) {
  const std::string note = JoinPath(options.state, kNoteInState);
  const std::string previous = ReadFile(note, kRecordBytes).value_or("");
  if (previous != path && absl::StartsWith(std::filesystem::path(previous).filename().string(), Prefix())) {
    RemoveUnlessHeld(previous, [] { return true; });
  }
  if (previous != path) Write(note, path).IgnoreError();  // the next incarnation tries again
  if (options.root.empty()) return;
  for (const std::filesystem::path& entry : EntriesOf(options.root)) {
    const std::string other = entry.string();
    if (other == path || !absl::StartsWith(entry.filename().string(), Prefix())) continue;
    if (absl::EndsWith(other, kGone)) {
      if (CheckPrivateFolder(other).ok()) RemoveFolder(other);
    } else {
      RemoveUnlessHeld(other, [&] { return IsAbandoned(other); });
    }
  }
}

}  // namespace trainyard::agent
