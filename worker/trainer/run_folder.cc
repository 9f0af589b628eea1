#include "worker/trainer/run_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/ids.h"
#include "common/status_macros.h"
#include "worker/checkpoint/catalog.h"

namespace trainyard {
namespace {

constexpr char kPrivateFolder[] = ".trainyard";
constexpr char kFenceName[] = ".fence";
// Beside the fence and not in it: whoever says late that it has settled must not write over a later fence.
constexpr char kSettledName[] = ".settled";
constexpr uint64_t kFenceBytesMax = 4096;
constexpr char kWatchName[] = "watch";  // by a trainctl that left: how to see the job again
constexpr size_t kNamesShown = 3;
constexpr absl::Duration kLockPoll = absl::Milliseconds(20);

std::string TokenPath(const std::string& folder, absl::string_view token) {
  return JoinPath(folder, absl::StrCat(kPrivateFolder, "/token-", token));
}

// None: there is none, or it cannot be read, which says nothing about anybody.
std::optional<JobGeneration> ReadOwner(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kFenceBytesMax);
  if (!text.ok()) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("job") || !json["job"].is_string() || !json.contains("generation") ||
      !json["generation"].is_number_unsigned()) {
    return std::nullopt;
  }
  return JobGeneration{.job_id = json["job"].get<std::string>(), .generation = json["generation"].get<uint64_t>()};
}

std::optional<JobGeneration> ReadFence(const std::string& folder) { return ReadOwner(JoinPath(folder, kFenceName)); }

absl::Status WriteOwner(const RunFolder::Options& options, const char* name) {
  nlohmann::ordered_json json = {{"job", options.job_id}, {"generation", options.generation}};
  return WriteFileAtomically(JoinPath(options.folder, name), absl::StrCat(json.dump(), "\n"));
}

absl::Status WriteFence(const RunFolder::Options& options) {
  RETURN_IF_ERROR(WriteOwner(options, kFenceName)) << "while fencing checkpoint.dir";
  return absl::OkStatus();
}

absl::Status FencedOff(const RunFolder::Options& options, const JobGeneration& fence) {
  return absl::AbortedError(absl::StrCat("checkpoint.dir ", options.folder, " belongs to generation ", fence.generation,
                                         " of job ", fence.job_id, " now; this is generation ", options.generation,
                                         " of job ", options.job_id, " and changes nothing there any more"));
}

// What tells one file at a path from the next. False: there is none.
bool LookAt(const std::string& path, int64_t* file, int64_t* time_ns) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return false;
  *file = static_cast<int64_t>(found.st_ino);
  *time_ns = int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Take(const Options& options) {
  RETURN_IF_ERROR(MakeFolders(options.folder)) << "while making checkpoint.dir";
  const std::string path = JoinPath(options.folder, kRunLockName);
  const absl::Time until = absl::Now() + options.wait;
  absl::StatusOr<std::unique_ptr<FileLock>> lock;
  std::optional<JobGeneration> fence;
  while (true) {
    lock = FileLock::Acquire(path, absl::ZeroDuration());
    fence = ReadFence(options.folder);
    bool of_this_job = fence.has_value() && fence->job_id == options.job_id;
    if (of_this_job && fence->generation > options.generation) return FencedOff(options, *fence);
    if (lock.ok()) break;
    if (!absl::IsUnavailable(lock.status())) return lock.status();
    if (of_this_job && fence->generation < options.generation) {
      RETURN_IF_ERROR(WriteFence(options));
      ASSIGN_OR_RETURN(lock, FileLock::Seize(path));
      break;
    }
    if (absl::Now() >= until) {
      return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", options.folder,
                                                        " is in use by another job: ", lock.status().message(),
                                                        "; wait for its end, or choose another checkpoint.dir"));
    }
    absl::SleepFor(kLockPoll);
  }
  if (options.had && fence.has_value() && fence->job_id != options.job_id) {
    return absl::NotFoundError(absl::StrCat("checkpoint.dir ", options.folder, " was taken by job ", fence->job_id,
                                            " and is no more that of job ", options.job_id,
                                            ": what lies there now is another job's; is it the folder that this job's "
                                            "other hosts see?"));
  }
  std::optional<JobGeneration> settled = ReadOwner(JoinPath(options.folder, kSettledName));
  RETURN_IF_ERROR(WriteFence(options));
  // A folder of an earlier version: whoever fenced it settled it.
  if (!settled.has_value()) settled = fence;
  return std::unique_ptr<RunFolder>(new RunFolder(options, *std::move(lock), std::move(settled)));
}

RunFolder::RunFolder(const Options& options, std::unique_ptr<FileLock> lock, std::optional<JobGeneration> settled)
    : options_(options), lock_(std::move(lock)), settled_(std::move(settled)) {
  LookAt(JoinPath(options_.folder, kFenceName), &fence_file_, &fence_time_ns_);
}

absl::Status RunFolder::CheckFence() const {
  int64_t file = 0;
  int64_t time_ns = 0;
  if (!LookAt(JoinPath(options_.folder, kFenceName), &file, &time_ns)) return absl::OkStatus();
  if (file == fence_file_ && time_ns == fence_time_ns_) return absl::OkStatus();
  std::optional<JobGeneration> fence = ReadFence(options_.folder);
  bool ours = !fence.has_value() || (fence->job_id == options_.job_id && fence->generation <= options_.generation);
  return ours ? absl::OkStatus() : FencedOff(options_, *fence);
}

absl::Status CheckFenceOf(const std::string& folder, const std::string& job_id, uint64_t generation) {
  const std::optional<JobGeneration> fence = ReadFence(folder);
  const bool ours = !fence.has_value() || (fence->job_id == job_id && fence->generation <= generation);
  return ours ? absl::OkStatus()
              : FencedOff({.folder = folder, .job_id = job_id, .generation = generation, .wait = {}}, *fence);
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
                      name == kWatchName;
    if (!ours) names.push_back(std::move(name));
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot list checkpoint.dir ", folder));
  if (names.empty()) return absl::OkStatus();
  std::sort(names.begin(), names.end());
  size_t more = names.size() - std::min(names.size(), kNamesShown);
  names.resize(names.size() - more);
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir ", folder, " is not empty (it holds ", absl::StrJoin(names, ", "),
                   more > 0 ? absl::StrCat(" and ", more, " more") : "",
                   "): go on from its newest checkpoint with --resume, or choose another checkpoint.dir"));
}

absl::StatusOr<std::unique_ptr<SharedFolderToken>> SharedFolderToken::Leave(const std::string& folder) {
  std::string name = RandomId(16);
  RETURN_IF_ERROR(MakeFolders(JoinPath(folder, kPrivateFolder)));
  RETURN_IF_ERROR(WriteFileAtomically(TokenPath(folder, name), name));
  return std::unique_ptr<SharedFolderToken>(new SharedFolderToken(folder, std::move(name)));
}

SharedFolderToken::~SharedFolderToken() {
  std::error_code ignored;
  std::filesystem::remove(TokenPath(folder_, name_), ignored);
  std::filesystem::remove(JoinPath(folder_, kPrivateFolder), ignored);  // if nothing else is in it
}

bool AwaitFile(const std::string& path, absl::Duration patience) {
  const absl::Time until = absl::Now() + patience;
  while (!FileExists(path)) {
    if (absl::Now() >= until) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience) {
  if (AwaitFile(TokenPath(folder, token), patience)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("host ", host, ": checkpoint.dir ", folder,
                                                    " is not the folder that rank 0 sees under that path; ",
                                                    "it must be shared by all hosts of the job"));
}

}  // namespace trainyard
