#include "checkpoint/inventory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/catalog.h"
#include "checkpoint/lease.h"
#include "checkpoint/verify.h"
#include "common/files.h"
#include "common/lock_holder.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

// RunFolderHolder takes a shared lock for a moment. This wait is longer, so that such a lock is not mistaken for a job.
constexpr absl::Duration kLockWait = absl::Milliseconds(100);

uint64_t SizeOf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const uint64_t bytes = fs::file_size(path, error);
    return error ? 0 : bytes;
  }
  uint64_t bytes = 0;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const uint64_t file_bytes = it->is_regular_file(ignored) ? it->file_size(ignored) : 0;
    if (!ignored) bytes += file_bytes;
  }
  return bytes;
}

// Derives kind and step from a name. Returns nullopt if the name is not one that saves or removals create.
std::optional<RunEntry> EntryOf(const std::string& name) {
  RunEntry entry{.name = name};
  entry.step = StepOfFolderName(name);
  if (entry.step.has_value()) return entry;
  if (absl::StartsWith(name, "step-") && absl::EndsWith(name, kPartialSuffix)) {
    entry.kind = RunEntry::Kind::kPartial;
    entry.step = StepOfFolderName(absl::string_view(name).substr(0, name.find('.')));
    return entry;
  }
  entry.kind = RunEntry::Kind::kOrphan;
  const bool temporary = absl::StrContains(name, ".tmp-") || absl::StartsWith(name, ".lock.new-") ||
                         (absl::StartsWith(name, "step-") && absl::EndsWith(name, kReplacedSuffix));
  if (temporary) return entry;
  return std::nullopt;
}

// Whether a run may resume from the entry: an undamaged checkpoint, or the complete partial of a save, which lacks only
// its final name. A partial that is being removed never becomes a checkpoint. What a later version of the program wrote
// cannot be verified here, and counts as undamaged. `if_unread`: the result for an entry that cannot be read.
bool MayResumeFrom(const RunEntry& entry, bool if_unread) {
  if (entry.kind == RunEntry::Kind::kOrphan) return false;
  if (entry.kind == RunEntry::Kind::kPartial && !SaveOfPartialName(entry.name).has_value()) return false;
  absl::StatusOr<VerifiedCheckpoint> verified = VerifyCheckpoint(entry.path, {});
  if (absl::IsUnimplemented(verified.status())) return true;
  if (!FailedReadOf(verified).ok()) return if_unread;
  return verified.ok() && verified->problems.empty() && verified->manifest->step == entry.step &&
         verified->manifest->nonfinite.empty();
}

// A partial is protected as if it were a checkpoint, but does not replace one: when the next generation claims the
// folder, it may reject the partial (settle.h).
absl::Status CheckOneRemains(const std::vector<RunEntry>& removed, const std::vector<RunEntry>& remaining) {
  auto good = std::find_if(removed.begin(), removed.end(),
                           [](const RunEntry& entry) { return MayResumeFrom(entry, /*if_unread=*/true); });
  const bool one_remains = std::any_of(remaining.begin(), remaining.end(), [](const RunEntry& entry) {
    return entry.kind == RunEntry::Kind::kCheckpoint && MayResumeFrom(entry, /*if_unread=*/false);
  });
  if (good == removed.end() || one_remains) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      good->path, " is the last good checkpoint of its folder and cannot be removed; nothing was removed"));
}

absl::StatusOr<std::unique_ptr<FileLock>> LockRunFolder(const std::string& run_folder) {
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(JoinPath(run_folder, kRunLockName), kLockWait);
  if (!absl::IsUnavailable(lock.status())) return lock;
  return absl::FailedPreconditionError(absl::StrCat("a job trains into ", run_folder, " now: ", lock.status().message(),
                                                    "; nothing was removed. The job removes old checkpoints "
                                                    "itself (checkpoint.keep)"));
}

}  // namespace

absl::StatusOr<std::vector<RunEntry>> ListRunFolder(const std::string& run_folder) {
  std::vector<RunEntry> entries;
  std::error_code error;
  fs::directory_iterator it(run_folder, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::optional<RunEntry> entry = EntryOf(it->path().filename().string());
    if (!entry.has_value()) continue;
    struct stat st = {};
    // An entry that this host fails to inspect is listed, so that no reader takes it for missing.
    if (stat(it->path().c_str(), &st) != 0 && (errno == ENOENT || entry->kind == RunEntry::Kind::kOrphan)) continue;
    // A temporary file is never a folder, so a folder with such a name belongs to the user.
    const bool is_replaced = absl::EndsWith(entry->name, kReplacedSuffix);
    if (entry->kind == RunEntry::Kind::kOrphan && !is_replaced && S_ISDIR(st.st_mode)) continue;
    entry->path = JoinPath(run_folder, entry->name);
    entry->size_bytes = SizeOf(it->path());
    entry->modified = absl::TimeFromTimespec(st.st_mtim);
    entries.push_back(*std::move(entry));
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot list ", run_folder));
  std::sort(entries.begin(), entries.end(), [](const RunEntry& a, const RunEntry& b) {
    return std::tuple(a.kind, b.step.value_or(0), a.name) < std::tuple(b.kind, a.step.value_or(0), b.name);
  });
  return entries;
}

std::string RunFolderHolder(const std::string& run_folder) {
  const int fd = OpenRegularFile(JoinPath(run_folder, kRunLockName), O_RDONLY).value_or(-1);
  if (fd < 0) return "";
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK) return "";
  return HolderInLockFile(fd);
}

absl::Status RemoveFromRunFolder(const std::string& run_folder, const std::vector<std::string>& names,
                                 FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, LockRunFolder(run_folder));
  ASSIGN_OR_RETURN(std::vector<RunEntry> remaining, ListRunFolder(run_folder));
  std::set<std::string> missing(names.begin(), names.end());
  std::vector<RunEntry> removed;
  for (const RunEntry& entry : remaining) {
    if (missing.erase(entry.name) > 0) removed.push_back(entry);
  }
  if (!missing.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no ", absl::StrJoin(missing, ", "), " in ", run_folder));
  }
  std::erase_if(remaining, [&](const RunEntry& entry) {
    return std::find(names.begin(), names.end(), entry.name) != names.end();
  });
  for (const RunEntry& entry : removed) {
    if (entry.kind == RunEntry::Kind::kOrphan) continue;
    absl::Status lease = CheckpointLease::ToRemove(entry.path).status();
    if (!lease.ok()) return absl::FailedPreconditionError(absl::StrCat(lease.message(), "; nothing was removed"));
  }
  RETURN_IF_ERROR(CheckOneRemains(removed, remaining));
  for (const RunEntry& entry : removed) {
    RETURN_IF_ERROR(entry.kind == RunEntry::Kind::kCheckpoint ? RemoveCheckpoint(entry.path, file_system)
                                                              : file_system.RemoveAll(entry.path));
  }
  return file_system.SyncFolder(run_folder);
}

}  // namespace trainyard
