#include "client/run_folder.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/nearest_name.h"
#include "common/plain_text.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

namespace fs = std::filesystem;

// When the run in a folder last made progress; file_time_type::min() if it has neither checkpoint nor metrics.
fs::file_time_type LastProgress(const fs::path& folder) {
  std::error_code error;
  fs::file_time_type newest = fs::file_time_type::min();
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name != "metrics.jsonl" && !absl::StartsWith(name, "step-")) continue;
    std::error_code ignored;
    fs::file_time_type time = it->last_write_time(ignored);
    if (!ignored) newest = std::max(newest, time);
  }
  return newest;
}

constexpr char kFreshStart[] = "To train from step 1 instead, give --allow-fresh-start";

bool ContainsCheckpoint(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    // A partial checkpoint that a crash has left counts, too, because the trainer may complete it.
    if (absl::StartsWith(it->path().filename().string(), "step-")) return true;
  }
  return false;
}

bool IsId(absl::string_view text) {
  if (text.size() < 8 || text.size() > 32) return false;
  for (char c : text) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c)) return false;
  }
  return true;
}

}  // namespace

std::string DefaultRunRoot(const std::string& working_directory) {
  return JoinPath(working_directory, "trainyard-runs");
}

absl::StatusOr<bool> RunFolderIsEmpty(const std::string& path) {
  std::error_code error;
  fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return true;
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot access the run folder ", path));
  if (!fs::is_directory(status))
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", path, " is not a folder"));
  fs::directory_iterator it(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot read the run folder ", path));
  for (; it != fs::directory_iterator(); it.increment(error)) {
    if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot read the run folder ", path));
    std::string name = it->path().filename().string();
    const bool is_in_every_run = name == ".trainyard" || name == ".lock" || name == ".fence" || name == ".settled" ||
                                 name == ".claim" || name == ".data" || name == kWatchFile;
    if (!is_in_every_run) return false;
  }
  return true;
}

std::string NewestRun(const std::string& root, const std::string& name, bool needs_checkpoint) {
  std::error_code error;
  std::string newest;
  fs::file_time_type newest_time = fs::file_time_type::min();
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::string folder = it->path().filename().string();
    absl::string_view id = folder;
    if (!name.empty() && (!absl::ConsumePrefix(&id, absl::StrCat(name, "-")) || !IsId(id))) continue;
    fs::file_time_type time = LastProgress(it->path());
    if (time <= newest_time || (needs_checkpoint && !ContainsCheckpoint(it->path()))) continue;
    newest_time = time;
    newest = it->path().string();
  }
  return newest;
}

std::string RunOfJob(const std::string& root, const std::string& id) {
  if (!IsId(id)) return "";
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (absl::EndsWith(it->path().filename().string(), absl::StrCat("-", id))) return it->path().string();
  }
  return "";
}

absl::Status WaitUntilUnlocked(const std::string& path, absl::Duration wait) {
  std::string lock_path = JoinPath(path, ".lock");
  if (!FileExists(lock_path)) return absl::OkStatus();
  auto lock = FileLock::Acquire(lock_path, wait);
  if (lock.ok()) return absl::OkStatus();
  // The folder may be mounted read-only here, or the lock file may belong to the user of the daemons. The trainer
  // checks the lock itself.
  if (absl::IsPermissionDenied(lock.status())) return absl::OkStatus();
  if (lock.status().code() != absl::StatusCode::kUnavailable) return lock.status();
  return absl::FailedPreconditionError(absl::StrCat("the run in ", path, " is still running: ", lock.status().message(),
                                                    ", waited ", absl::FormatDuration(wait),
                                                    ". Cancel it, or wait until it ends"));
}

absl::Status CheckRunFolder(const std::string& path, bool resume) {
  if (resume) return WaitUntilUnlocked(path, kPredecessorWait);
  ASSIGN_OR_RETURN(bool empty, RunFolderIsEmpty(path));
  if (empty) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", path,
                                                    " is not empty. Give --resume to resume from its newest "
                                                    "checkpoint, or choose another folder: --set checkpoint.dir=DIR"));
}

absl::Status CheckResumable(const std::string& path) {
  if (ContainsCheckpoint(path)) return absl::OkStatus();
  const fs::path folder(path);
  std::vector<std::string> siblings;
  std::error_code error;
  for (fs::directory_iterator it(folder.parent_path(), error), end; !error && it != end; it.increment(error)) {
    if (ContainsCheckpoint(it->path())) siblings.push_back(it->path().filename().string());
  }
  const std::string nearest = NearestName(folder.filename().string(), siblings);
  return absl::FailedPreconditionError(absl::StrCat(
      "--resume: checkpoint.dir ", path, FileExists(path) ? " contains no checkpoint" : " does not exist",
      nearest.empty() ? "." : absl::StrCat("; did you mean ", (folder.parent_path() / nearest).string(), "?"), " ",
      kFreshStart));
}

absl::Status ChooseRunFolder(v1::SubmitRequest* request, bool on_this_machine, std::string* notice) {
  v1::JobSpec& spec = *request->mutable_spec();
  if (spec.has_probe() || spec.has_command()) {
    // An unusable root is left out; the program of a command then has no default folder for checkpoints.
    if (!WhyNotPlainText(request->default_run_root()).empty()) request->clear_default_run_root();
    if (!request->resume()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--resume: a ", spec.has_probe() ? "probe" : "command",
                                                   " has no checkpoint of Trainyard to resume from"));
  }
  if (!spec.checkpoint().has_dir() && request->resume()) {
    std::string newest = NewestRun(request->default_run_root(), spec.name(), /*needs_checkpoint=*/true);
    if (newest.empty()) {
      const std::string nothing = absl::StrCat("nothing to resume: no ", request->default_run_root(), "/", spec.name(),
                                               "-* contains a checkpoint");
      if (!request->allow_fresh_start()) {
        return absl::FailedPreconditionError(absl::StrCat(nothing, ". ", kFreshStart));
      }
      *notice = absl::StrCat(nothing, "; starting from step 1");
      // The job gets a new folder, which contains nothing to resume.
      request->set_resume(false);
      return absl::OkStatus();
    }
    *notice = absl::StrCat("resuming the run in ", newest);
    spec.mutable_checkpoint()->set_dir(newest);
  }
  if (std::string wrong = WhyNotPlainText(request->default_run_root()); !wrong.empty()) {
    if (!spec.checkpoint().has_dir()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the path of the working directory ", wrong,
          ", and the run folder would be created in it; set checkpoint.dir, or start trainctl in another directory"));
    }
    request->clear_default_run_root();
  }
  if (!spec.checkpoint().has_dir()) return absl::OkStatus();
  if (request->resume() && !request->allow_fresh_start() && on_this_machine) {
    RETURN_IF_ERROR(CheckResumable(spec.checkpoint().dir()));
  }
  return CheckRunFolder(spec.checkpoint().dir(), request->resume());
}

}  // namespace trainyard::client
