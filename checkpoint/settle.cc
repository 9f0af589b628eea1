#include "checkpoint/settle.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/catalog.h"
#include "checkpoint/read_error.h"
#include "checkpoint/verify.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// RemovePartial renames a partial to a name that contains this before it removes the partial.
constexpr absl::string_view kSwept = ".swept-";

bool IsPartial(absl::string_view name) {
  return absl::StartsWith(name, "step-") && absl::EndsWith(name, kPartialSuffix);
}

bool IsUndamaged(const absl::StatusOr<VerifiedCheckpoint>& verified, uint64_t step) {
  return verified.ok() && verified->problems.empty() && verified->manifest.has_value() &&
         verified->manifest->step == step;
}

// The process that wrote the partial may have been killed before it synced the files.
absl::Status SyncAll(const std::string& partial, const Manifest& manifest, FileSystem& file_system) {
  for (const ManifestFile& file : manifest.files) {
    RETURN_IF_ERROR(file_system.SyncFile(JoinPath(partial, file.name)));
  }
  RETURN_IF_ERROR(file_system.SyncFile(JoinPath(partial, kManifestName)));
  return file_system.SyncFolder(partial);
}

// Returns why a partial does not become a checkpoint; empty if it does, and `verified` then has its manifest. If
// FailedReadOf(verified) is an error, the reason is unknown.
std::string WhyNotPublished(const std::string& partial, const std::string& name, const SettleOptions& options,
                            absl::StatusOr<VerifiedCheckpoint>& verified) {
  const std::optional<PartialName> parsed = SaveOfPartialName(name);
  if (!parsed.has_value()) return "was being removed";
  verified = QuickVerifyCheckpoint(partial);
  if (verified.ok() && verified->manifest.has_value()) {
    std::string not_valid = WhyNotValid(*verified->manifest, verified->manifest_hash, options);
    if (!not_valid.empty()) {
      verified->problems.clear();  // whether its files can be read does not matter
      return not_valid;
    }
  }
  if (!IsUndamaged(verified, parsed->step) || verified->manifest->generation != parsed->generation) {
    return "was left by an interrupted save";
  }
  // The hashes are verified last, because the cheaper checks above reject most partials.
  verified = VerifyCheckpoint(partial, {});
  if (IsUndamaged(verified, parsed->step)) return "";
  return absl::StrCat("is damaged: ", verified.ok() && !verified->problems.empty()
                                          ? verified->problems[0].Text(name)
                                          : std::string(verified.status().message()));
}

absl::Status SettleOne(const std::string& run_folder, const std::string& name, const SettleOptions& options,
                       FileSystem& file_system, std::vector<std::string>& messages) {
  const std::string partial = JoinPath(run_folder, name);
  absl::StatusOr<VerifiedCheckpoint> verified = VerifiedCheckpoint{};
  std::string reason = WhyNotPublished(partial, name, options, verified);
  // A later version of the program wrote the partial, which may hold the newest state of the run.
  if (absl::IsUnimplemented(verified.status())) return verified.status();
  RETURN_IF_ERROR(FailedReadOf(verified)) << name << " may hold the newest state, so it is not removed";
  if (reason.empty()) {
    const uint64_t step = verified->manifest->step;
    const std::string path = JoinPath(run_folder, StepFolderName(step));
    const bool replaces = FileExists(path);
    const absl::StatusOr<VerifiedCheckpoint> present = VerifyCheckpoint(path, {});  // fails if there is none
    if (absl::IsUnimplemented(present.status())) return present.status();
    RETURN_IF_ERROR(FailedReadOf(present)) << path << " may be good, so " << name << " does not replace it";
    if (!IsUndamaged(present, step)) {
      RETURN_IF_ERROR(SyncAll(partial, *verified->manifest, file_system));
      RETURN_IF_ERROR(PublishFolder(partial, path, file_system));
      messages.push_back(absl::StrCat(name, " was complete and ", replaces ? "replaces " : "becomes ", path,
                                      replaces ? ", which was damaged" : ""));
      // After the exchange, the damaged checkpoint has the name of the partial. If it is not removed now, the next
      // generation that claims the folder removes it as a damaged partial.
      const bool removes = replaces && options.removes;
      const absl::Status removed = removes ? RemovePartial(partial, file_system) : absl::OkStatus();
      if (!removed.ok()) {
        messages.push_back(
            absl::StrCat("the damaged checkpoint that ", name, " replaces cannot be removed: ", removed.message()));
      }
      return absl::OkStatus();
    }
    reason = "is of a step that has a checkpoint already";
  }
  if (!options.removes) return absl::OkStatus();
  absl::Status removed = RemovePartial(partial, file_system);
  messages.push_back(
      absl::StrCat(name, " ", reason,
                   removed.ok() ? "; it was removed" : absl::StrCat("; it cannot be removed: ", removed.message())));
  return absl::OkStatus();
}

// On a file system without atomic exchange, a checkpoint that is being replaced has another name for a moment
// (file_system.cc). Renames it back if the replacement was interrupted, and removes it otherwise. Fails with a failed
// read (read_error.h).
absl::Status SettleReplaced(const std::string& run_folder, const std::string& name, bool removes,
                            FileSystem& file_system, std::vector<std::string>& messages) {
  const std::string old = JoinPath(run_folder, name);
  absl::StatusOr<VerifiedCheckpoint> verified = VerifyCheckpoint(old, {});
  // A later version of the program wrote the folder, so this version leaves it there.
  if (absl::IsUnimplemented(verified.status())) return absl::OkStatus();
  RETURN_IF_ERROR(FailedReadOf(verified)) << name << " may hold a good checkpoint, so it is not removed";
  const bool good = verified.ok() && verified->manifest.has_value() && verified->problems.empty();
  const std::string path = good ? JoinPath(run_folder, StepFolderName(verified->manifest->step)) : "";
  if (!good || FileExists(path)) {
    if (removes) file_system.RemoveAll(old).IgnoreError();
    return absl::OkStatus();
  }
  absl::Status renamed = file_system.RenameOrExchange(old, path);
  if (renamed.ok()) renamed = file_system.SyncFolder(run_folder);
  messages.push_back(
      renamed.ok() ? absl::StrCat("the replacement of ", path, " was interrupted; ", name, " was renamed to ", path)
                   : absl::StrCat("the replacement of ", path, " was interrupted, and ", name,
                                  " cannot be renamed back: ", renamed.message()));
  return absl::OkStatus();
}

// Whether this is a temporary file that WriteFileAtomically or FileLock::Seize left because its process was killed. The
// name of such a file ends with the ID of the process; if that process still runs on this host, it is still writing the
// file. Neither function makes a folder, so a folder with such a name belongs to the user.
bool IsAbandonedFile(const std::string& run_folder, const std::string& name) {
  struct stat st;
  if (lstat(JoinPath(run_folder, name).c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return false;
  int pid = 0;
  const bool has_temporary_name = absl::StrContains(name, ".tmp-") || absl::StrContains(name, ".new-");
  if (!has_temporary_name || !absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &pid) || pid <= 0) return false;
  return kill(pid, 0) != 0 && errno == ESRCH;
}

// Removes the token files with which ranks have checked that they share the folder (run_folder.h); no rank reads them
// any more.
void RemoveSharedFolderTokens(const std::string& run_folder, FileSystem& file_system) {
  const std::string folder = JoinPath(run_folder, ".trainyard");
  absl::StatusOr<std::vector<std::string>> names = ListNames(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, "token-")) file_system.RemoveAll(JoinPath(folder, name)).IgnoreError();
  }
}

}  // namespace

std::string WhyNotValid(const Manifest& manifest, const std::string& manifest_hash, const SettleOptions& options) {
  if (options.granted.contains(manifest_hash)) return "";
  const JobGeneration oldest_valid = options.settled.value_or(JobGeneration{.job_id = options.job_id});
  if (manifest.job_id != oldest_valid.job_id) {
    return absl::StrCat("is of job ", manifest.job_id, ", but job ", oldest_valid.job_id, " had claimed the folder");
  }
  if (manifest.generation >= oldest_valid.generation) return "";
  return absl::StrCat("was completed by generation ", manifest.generation, " after generation ",
                      oldest_valid.generation, " had claimed the folder");
}

absl::StatusOr<std::vector<std::string>> SettlePartials(const std::string& run_folder, const SettleOptions& options,
                                                        FileSystem& file_system) {
  // The process that published a checkpoint may have been killed before it synced the folder. The name must be durable
  // before the run resumes from the checkpoint, and before the checkpoint that it replaced is removed.
  RETURN_IF_ERROR(file_system.SyncFolder(run_folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, MarkFailedRead(ListNames(run_folder)));
  std::vector<std::string> messages;
  for (const std::string& name : names) {
    if (IsPartial(name)) {
      RETURN_IF_ERROR(SettleOne(run_folder, name, options, file_system, messages));
    } else if (options.removes && IsAbandonedFile(run_folder, name)) {
      file_system.RemoveAll(JoinPath(run_folder, name)).IgnoreError();
    }
  }
  for (const std::string& name : names) {
    if (absl::StartsWith(name, "step-") && absl::EndsWith(name, kReplacedSuffix)) {
      RETURN_IF_ERROR(SettleReplaced(run_folder, name, options.removes, file_system, messages));
    }
  }
  if (options.removes) RemoveSharedFolderTokens(run_folder, file_system);
  return messages;
}

std::vector<std::string> SweepPartials(const std::string& run_folder, uint64_t generation, FileSystem& file_system,
                                       const std::function<absl::Status()>& may_remove) {
  std::vector<std::string> messages;
  absl::StatusOr<std::vector<std::string>> names = ListNames(run_folder);
  if (!names.ok()) return messages;
  for (const std::string& name : *names) {
    if (!IsPartial(name)) continue;
    const std::optional<PartialName> partial = SaveOfPartialName(name);
    if (partial.has_value() && partial->generation == generation) continue;
    if (may_remove != nullptr && !may_remove().ok()) break;
    absl::Status removed = RemovePartial(JoinPath(run_folder, name), file_system);
    messages.push_back(absl::StrCat(name, removed.ok() ? ", left by another generation, was removed"
                                                       : absl::StrCat(" cannot be removed: ", removed.message())));
  }
  return messages;
}

absl::Status RemovePartial(const std::string& partial, FileSystem& file_system) {
  absl::string_view base = partial;
  absl::ConsumeSuffix(&base, kPartialSuffix);
  std::string renamed = partial;
  if (!absl::StrContains(std::filesystem::path(partial).filename().string(), kSwept)) {
    renamed = absl::StrCat(base, kSwept, RandomId(8), kPartialSuffix);
    RETURN_IF_ERROR(file_system.RenameOrExchange(partial, renamed));
  }
  return file_system.RemoveAll(renamed);
}

}  // namespace trainyard
