#include "worker/trainer/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "checkpoint/catalog.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr char kPrivateFolder[] = ".trainyard";
constexpr char kFenceName[] = ".fence";
// Names the generation that last cleaned up ("settled") the partial folders (checkpoint/settle.h). A file of its own,
// because a generation that settles late must not overwrite a later fence.
constexpr char kSettledName[] = ".settled";
// Names the job that holds the lock but has not claimed the folder. Removed when the job claims or leaves the folder.
constexpr char kClaimName[] = ".claim";
constexpr uint64_t kFenceBytesMax = 4096;
// Written by a trainctl that exits before the job ends: how to follow the job again.
constexpr char kWatchName[] = "watch";
constexpr size_t kNamesShown = 3;
constexpr absl::Duration kLockPoll = absl::Milliseconds(20);
constexpr char kLaterGenerationUrl[] = "trainyard/later_generation";

// A step of the wall clock must not end a wait: a job whose folder seems to be in use is refused permanently.
absl::Time SteadyNow() { return Clock::GetSteadyClock().TimeNow(); }

std::string TokenPath(const std::string& folder, absl::string_view token) {
  return JoinPath(folder, absl::StrCat(kPrivateFolder, "/token-", token));
}

// Returns nullopt if there is no such file, or if its content names no owner. Fails if the file cannot be read (an I/O
// error, a stale file handle, no permission): it may name any owner then.
absl::StatusOr<std::optional<JobGeneration>> ReadOwner(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kFenceBytesMax);
  if (absl::IsUnknown(text.status()) || absl::IsPermissionDenied(text.status())) return text.status();
  if (!text.ok()) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("job") || !json["job"].is_string() || !json.contains("generation") ||
      !json["generation"].is_number_unsigned()) {
    return std::nullopt;
  }
  return JobGeneration{.job_id = json["job"].get<std::string>(), .generation = json["generation"].get<uint64_t>()};
}

absl::StatusOr<std::optional<JobGeneration>> ReadFence(const std::string& folder) {
  return ReadOwner(JoinPath(folder, kFenceName));
}

absl::Status WriteOwner(const RunFolder::Options& options, const char* name) {
  nlohmann::ordered_json json = {{"job", options.job_id}, {"generation", options.generation}};
  return WriteFileAtomically(JoinPath(options.folder, name), absl::StrCat(json.dump(), "\n"));
}

absl::Status FencedOff(const RunFolder::Options& options, const JobGeneration& fence) {
  return absl::AbortedError(absl::StrCat("checkpoint.dir ", options.folder, " belongs to generation ", fence.generation,
                                         " of job ", fence.job_id, " now; this is generation ", options.generation,
                                         " of job ", options.job_id, " and no longer changes anything there"));
}

// The device of the file system of `path`, which need not exist.
uint64_t DeviceOf(const std::string& path) {
  struct stat found;
  for (std::filesystem::path at = path;; at = at.parent_path()) {
    if (stat(at.empty() ? "." : at.c_str(), &found) == 0) return found.st_dev;
    if (!at.has_relative_path()) return 0;
  }
}

// Reads what distinguishes successive files at a path. Returns false if there is none.
bool ReadFileIdentity(const std::string& path, int64_t* inode, int64_t* time_ns) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return false;
  *inode = static_cast<int64_t>(found.st_ino);
  *time_ns = int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
  return true;
}

}  // namespace

namespace {

// Waits for the lock as RunFolder::Options specifies, and reads the fence while holding it.
class LockWait {
 public:
  explicit LockWait(const RunFolder::Options& options)
      : options_(options), path_(JoinPath(options.folder, kRunLockName)), deadline_(SteadyNow() + options.wait) {}

  absl::StatusOr<std::unique_ptr<FileLock>> Acquire(std::optional<JobGeneration>& fence) {
    while (true) {
      absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(path_, absl::ZeroDuration());
      const absl::StatusOr<std::optional<JobGeneration>> read_fence = ReadFence(options_.folder);
      const absl::StatusOr<std::optional<JobGeneration>> read_claim = ReadOwner(JoinPath(options_.folder, kClaimName));
      if (!read_fence.ok() || !read_claim.ok()) {
        // On NFS, the file handle is stale right after another host has replaced the file.
        if (SteadyNow() >= deadline_) return read_fence.ok() ? read_claim.status() : read_fence.status();
        lock = absl::CancelledError();  // releases it while waiting
        absl::SleepFor(kLockPoll);
        continue;
      }
      fence = *read_fence;
      const std::optional<JobGeneration>& claim = *read_claim;
      for (const auto& owner : {fence, claim}) {
        if (!IsOfThisJob(owner) || owner->generation <= options_.generation) continue;
        absl::Status fenced_off = FencedOff(options_, *owner);
        if (lock.ok()) fenced_off.SetPayload(kLaterGenerationUrl, absl::Cord(absl::StrCat(owner->generation)));
        return fenced_off;
      }
      if (lock.ok() && (IsOfThisJob(fence) || !MayReturn(fence))) return lock;
      if (!lock.ok() && !absl::IsUnavailable(lock.status())) return lock.status();
      for (const auto& [owner, name] : {std::pair(fence, kFenceName), std::pair(claim, kClaimName)}) {
        if (lock.ok() || !IsOfThisJob(owner) || owner->generation >= options_.generation) continue;
        RETURN_IF_ERROR(WriteOwner(options_, name)) << "while fencing checkpoint.dir";
        return FileLock::Seize(path_);
      }
      if (!lock.ok()) {
        was_held_ = true;
        free_since_.reset();
        if (SteadyNow() >= deadline_) return InUse(lock.status());
      }
      lock = absl::CancelledError();  // not held while waiting
      absl::SleepFor(kLockPoll);
    }
  }

 private:
  bool IsOfThisJob(const std::optional<JobGeneration>& owner) const {
    return owner.has_value() && owner->job_id == options_.job_id;
  }
  // The job of the fence released the lock while we waited for it: its rank 0 may have been killed, and its next
  // generation may be about to start.
  bool MayReturn(const std::optional<JobGeneration>& fence) {
    if (!was_held_ || !fence.has_value()) return false;
    if (!free_since_.has_value()) free_since_ = SteadyNow();
    return SteadyNow() - *free_since_ < options_.owner_grace;
  }
  absl::Status InUse(const absl::Status& lock) const {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", options_.folder,
                                                      " is in use by another job: ", lock.message(),
                                                      "; wait for its end, or choose another checkpoint.dir"));
  }

  const RunFolder::Options& options_;
  const std::string path_;
  const absl::Time deadline_;
  bool was_held_ = false;
  std::optional<absl::Time> free_since_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Acquire(const Options& options) {
  Found found{.created_folders = MissingFolders(options.folder)};
  RETURN_IF_ERROR(MakeFolders(options.folder)) << "while creating checkpoint.dir";
  ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, LockWait(options).Acquire(found.fence));
  ASSIGN_OR_RETURN(found.settled, ReadOwner(JoinPath(options.folder, kSettledName)));
  found.device = DeviceOf(options.folder);
  const bool is_foreign = found.fence.has_value() && found.fence->job_id != options.job_id;
  const bool is_ours = found.fence.has_value() && !is_foreign;
  // Earlier versions wrote no record of settling. In their folders, the generation of the fence had settled the folder.
  if (!found.settled.has_value()) found.settled = found.fence;
  std::unique_ptr<RunFolder> folder(new RunFolder(options, std::move(lock), std::move(found)));
  if (options.owned_before && is_foreign) {
    return absl::NotFoundError(absl::StrCat("checkpoint.dir ", options.folder, " was claimed by job ",
                                            folder->found_.fence->job_id, " and no longer belongs to job ",
                                            options.job_id,
                                            ": its contents are another job's now; is it the folder that this job's "
                                            "other hosts see?"));
  }
  // Earlier generations of this job that are still running must not change anything from now on.
  RETURN_IF_ERROR(is_ours ? folder->Claim() : WriteOwner(options, kClaimName)) << "while claiming checkpoint.dir";
  return folder;
}

RunFolder::RunFolder(const Options& options, std::unique_ptr<FileLock> lock, Found found)
    : options_(options), found_(std::move(found)), lock_(std::move(lock)) {}

RunFolder::~RunFolder() {
  absl::MutexLock lock(&mu_);
  if (claimed_ || !lock_->IsAtPath()) return;
  std::error_code ignored;
  std::filesystem::remove(JoinPath(options_.folder, kClaimName), ignored);
  // A process that waits for the lock detects that its file is gone, and creates another.
  if (lock_->created_file()) std::filesystem::remove(JoinPath(options_.folder, kRunLockName), ignored);
  for (const std::string& folder : found_.created_folders) std::filesystem::remove(folder, ignored);  // if it is empty
}

bool RunFolder::claimed() const {
  absl::MutexLock lock(&mu_);
  return claimed_;
}

absl::Status RunFolder::WriteFence() {
  RETURN_IF_ERROR(WriteOwner(options_, kFenceName)) << "while fencing checkpoint.dir";
  ReadFileIdentity(JoinPath(options_.folder, kFenceName), &fence_inode_, &fence_time_ns_);
  claimed_ = true;
  return absl::OkStatus();
}

absl::Status RunFolder::Claim() {
  absl::MutexLock lock(&mu_);
  if (claimed_) return absl::OkStatus();
  const std::string claim_path = JoinPath(options_.folder, kClaimName);
  ASSIGN_OR_RETURN(const std::optional<JobGeneration> fence, ReadFence(options_.folder));
  ASSIGN_OR_RETURN(const std::optional<JobGeneration> claim, ReadOwner(claim_path));
  for (const auto& owner : {fence, claim}) {
    const bool newer = owner.has_value() && owner->job_id == options_.job_id && owner->generation > options_.generation;
    if (newer) return FencedOff(options_, *owner);
  }
  if (fence.has_value() && fence->job_id != options_.job_id && (fence != found_.fence || !lock_->IsAtPath())) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", options_.folder, " was claimed again by job ",
                                                      fence->job_id,
                                                      ", which owned it before, while this job was being checked; wait "
                                                      "for its end, or choose another checkpoint.dir"));
  }
  if (!lock_->IsAtPath()) {
    return absl::UnknownError(
        absl::StrCat("the lock of checkpoint.dir ", options_.folder, " was removed while this job was being checked"));
  }
  RETURN_IF_ERROR(WriteFence());
  std::error_code ignored;
  std::filesystem::remove(claim_path, ignored);
  return absl::OkStatus();
}

absl::Status RunFolder::RecreateIfRemoved() {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(CheckFenceLocked());
  if (lock_->IsAtPath() && FileExists(JoinPath(options_.folder, kFenceName))) return absl::OkStatus();
  RETURN_IF_ERROR(CheckDisk());
  const std::string what =
      absl::StrCat("checkpoint.dir ", options_.folder, " was removed during training and cannot be recreated");
  RETURN_IF_ERROR(MakeFolders(options_.folder)) << what;
  if (!lock_->IsAtPath()) {
    ASSIGN_OR_RETURN(std::unique_ptr<FileLock> new_lock,
                     FileLock::Acquire(JoinPath(options_.folder, kRunLockName), absl::ZeroDuration()), << what);
    // A job that claimed the folder before us has left its fence.
    RETURN_IF_ERROR(CheckFenceLocked());
    lock_ = std::move(new_lock);
  }
  ASSIGN_OR_RETURN(const std::optional<JobGeneration> fence, ReadFence(options_.folder), << what);
  if (fence.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(WriteFence()) << what;
  return WriteOwner(options_, kSettledName);
}

absl::Status RunFolder::CheckDisk() const {
  if (DeviceOf(options_.folder) == found_.device) return absl::OkStatus();
  // A file system that was mounted again, as FUSE does after its process ended, may have another device number. The
  // folder is the same if it contains the fence of this generation.
  const JobGeneration ours{.job_id = options_.job_id, .generation = options_.generation};
  if (ReadFence(options_.folder).value_or(std::nullopt) == ours) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("checkpoint.dir ", options_.folder,
                                             " is no longer on the disk where the job began: was it unmounted?"));
}

absl::Status RunFolder::CheckFolderExists() const {
  RETURN_IF_ERROR(CheckDisk());
  if (FileExists(options_.folder)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("checkpoint.dir ", options_.folder, ": No such file or directory"));
}

absl::Status RunFolder::CheckFence() const {
  absl::MutexLock lock(&mu_);
  return CheckFenceLocked();
}

absl::Status RunFolder::CheckFenceLocked() const {
  int64_t inode = 0;
  int64_t time_ns = 0;
  if (!ReadFileIdentity(JoinPath(options_.folder, kFenceName), &inode, &time_ns)) return absl::OkStatus();
  if (inode == fence_inode_ && time_ns == fence_time_ns_) return absl::OkStatus();
  const std::optional<JobGeneration> fence = ReadFence(options_.folder).value_or(std::nullopt);
  bool ours = !fence.has_value() || (fence->job_id == options_.job_id && fence->generation <= options_.generation);
  return ours ? absl::OkStatus() : FencedOff(options_, *fence);
}

uint64_t EndedLaterGeneration(const absl::Status& status) {
  const auto payload = status.GetPayload(kLaterGenerationUrl);
  uint64_t generation = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &generation)) return 0;
  return generation;
}

absl::Status CheckFenceOf(const std::string& folder, const std::string& job_id, uint64_t generation) {
  const absl::StatusOr<std::optional<JobGeneration>> read = ReadFence(folder);
  // On NFS, the file handle of a fence is stale right after another host has replaced the fence.
  if (!read.ok()) {
    return absl::UnavailableError(absl::StrCat("it is unknown which job or generation owns checkpoint.dir ", folder,
                                               ", so nothing is changed there: ", read.status().message()));
  }
  const std::optional<JobGeneration>& fence = *read;
  const bool ours = !fence.has_value() || (fence->job_id == job_id && fence->generation <= generation);
  return ours ? absl::OkStatus()
              : FencedOff({.folder = folder, .job_id = job_id, .generation = generation, .wait = {}}, *fence);
}

namespace {

// Returns a function that calls `call` with `lock`, which it keeps alive only while it runs. REQUIRES: `lock` is not
// null.
std::function<absl::Status()> UntilRankLeaves(const std::shared_ptr<RunFolder>& lock,
                                              std::function<absl::Status(RunFolder&)> call) {
  return [weak = std::weak_ptr<RunFolder>(lock), call = std::move(call)]() -> absl::Status {
    const std::shared_ptr<RunFolder> held = weak.lock();
    if (held == nullptr) return absl::AbortedError("the rank has left and no longer changes checkpoint.dir");
    return call(*held);
  };
}

}  // namespace

std::function<absl::Status()> SaveFence(const std::shared_ptr<RunFolder>& lock, const std::string& folder,
                                        const std::string& job_id, uint64_t generation) {
  if (lock == nullptr) return [=] { return CheckFenceOf(folder, job_id, generation); };
  return UntilRankLeaves(lock, [folder, job_id, generation](RunFolder& held) -> absl::Status {
    // Reads the fence also on rank 0, because a network file system may answer the `stat` of RunFolder::CheckFence from
    // a cache for a minute. Opening the fence makes it ask the server.
    RETURN_IF_ERROR(CheckFenceOf(folder, job_id, generation));
    return held.CheckFolderExists();
  });
}

std::function<absl::Status()> FolderRecreation(const std::shared_ptr<RunFolder>& lock) {
  if (lock == nullptr) return [] { return absl::OkStatus(); };
  return UntilRankLeaves(lock, &RunFolder::RecreateIfRemoved);
}

std::function<absl::Status()> StepFence(const std::shared_ptr<RunFolder>& lock) {
  if (lock == nullptr) return [] { return absl::OkStatus(); };
  return UntilRankLeaves(lock, &RunFolder::CheckFence);
}

absl::Status RunFolder::MarkSettled() const {
  RETURN_IF_ERROR(CheckFence());
  RETURN_IF_ERROR(WriteOwner(options_, kSettledName)) << "while settling checkpoint.dir";
  return absl::OkStatus();
}

absl::Status CheckEmpty(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    const bool ours = name == kPrivateFolder || name == kRunLockName || name == kFenceName || name == kSettledName ||
                      name == kClaimName || name == ".data" || name == kWatchName;
    if (!ours) names.push_back(std::move(name));
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot list checkpoint.dir ", folder));
  if (names.empty()) return absl::OkStatus();
  std::sort(names.begin(), names.end());
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir ", folder, " is not empty (it holds ", JoinFirst(names, kNamesShown),
                   "): resume from its newest checkpoint with --resume, or choose another checkpoint.dir"));
}

absl::StatusOr<std::unique_ptr<SharedFolderToken>> SharedFolderToken::Create(const std::string& folder) {
  std::string name = RandomId(16);
  RETURN_IF_ERROR(MakeFolders(JoinPath(folder, kPrivateFolder)));
  RETURN_IF_ERROR(WriteFileAtomically(TokenPath(folder, name), name));
  return std::unique_ptr<SharedFolderToken>(new SharedFolderToken(folder, std::move(name)));
}

SharedFolderToken::~SharedFolderToken() {
  std::error_code ignored;
  std::filesystem::remove(TokenPath(folder_, name_), ignored);
  std::filesystem::remove(JoinPath(folder_, kPrivateFolder), ignored);  // if it is empty
}

bool AwaitThat(const std::function<bool()>& holds, absl::Duration patience) {
  const absl::Time until = SteadyNow() + patience;
  while (!holds()) {
    if (SteadyNow() >= until) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

bool AwaitFile(const std::string& path, absl::Duration patience) {
  return AwaitThat([&path] { return FileExists(path); }, patience);
}

absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience) {
  if (AwaitFile(TokenPath(folder, token), patience)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("host ", host, ": checkpoint.dir ", folder,
                                                    " is not the folder that rank 0 sees at that path; ",
                                                    "it must be shared by all hosts of the job"));
}

}  // namespace trainyard
