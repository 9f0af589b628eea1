#include "checkpoint/catalog.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "checkpoint/lease.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/read_error.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

absl::StatusOr<std::vector<std::string>> ListNames(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error), end;
  while (!error && it != end) {
    names.push_back(it->path().filename().string());
    it.increment(error);
  }
  if (error == std::errc::no_such_file_or_directory) return std::vector<std::string>{};
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot list ", folder));
  std::sort(names.begin(), names.end());
  return names;
}

std::string StepFolderName(uint64_t step) { return absl::StrFormat("step-%08d", step); }

std::optional<uint64_t> StepOfFolderName(absl::string_view name) {
  uint64_t step = 0;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8 || !absl::SimpleAtoi(name, &step)) return std::nullopt;
  if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return step;
}

std::string PartialPath(const std::string& run_folder, uint64_t step, uint64_t generation) {
  return JoinPath(run_folder, absl::StrCat(StepFolderName(step), ".g", generation, kPartialSuffix));
}

std::optional<PartialName> SaveOfPartialName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kPartialSuffix)) return std::nullopt;
  const size_t dot = name.find(".g");
  if (dot == absl::string_view::npos) return std::nullopt;
  PartialName partial;
  const std::optional<uint64_t> step = StepOfFolderName(name.substr(0, dot));
  if (!step.has_value() || !absl::SimpleAtoi(name.substr(dot + 2), &partial.generation)) return std::nullopt;
  partial.step = *step;
  return partial;
}

absl::StatusOr<std::vector<StepFolder>> ListCheckpoints(const std::string& run_folder) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, ListNames(run_folder));
  std::vector<StepFolder> folders;
  for (const std::string& name : names) {
    if (auto step = StepOfFolderName(name)) folders.push_back({.step = *step, .path = JoinPath(run_folder, name)});
  }
  std::sort(folders.begin(), folders.end(), [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return folders;
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& run_folder, const FindOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<StepFolder> folders, MarkFailedRead(ListCheckpoints(run_folder)));
  FoundCheckpoint found;
  for (const StepFolder& folder : folders) {
    if (options.before_step.has_value() && folder.step >= *options.before_step) continue;
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint =
        options.verify_bytes ? Checkpoint::Open(folder.path) : Checkpoint::OpenUnverified(folder.path);
    if (checkpoint.ok() && (*checkpoint)->manifest().step != folder.step) {
      checkpoint = absl::DataLossError(
          absl::StrCat(folder.path, " contains a checkpoint of step ", (*checkpoint)->manifest().step));
    }
    if (checkpoint.ok() && !(*checkpoint)->manifest().nonfinite.empty()) {
      const std::vector<std::string>& names = (*checkpoint)->manifest().nonfinite;
      found.damaged.push_back(absl::StrCat("checkpoint of step ", folder.step, " contains values that are not finite (",
                                           names[0], names.size() > 1 ? " and others" : "",
                                           "); no job resumes from it"));
      continue;
    }
    if (checkpoint.ok()) {
      found.checkpoint = *std::move(checkpoint);
      return found;
    }
    if (absl::IsUnimplemented(checkpoint.status())) {
      return absl::UnimplementedError(
          absl::StrCat("checkpoint of step ", folder.step, ": ", checkpoint.status().message(),
                       "; an older checkpoint is used only if you remove this one (trainctl checkpoint rm)"));
    }
    if (IsFailedRead(checkpoint.status())) {
      RETURN_IF_ERROR(checkpoint.status())
          << "the checkpoint of step " << folder.step
          << " may be good, so no older one is used; if it stays unreadable, move it out of the folder";
    }
    found.damaged.push_back(
        absl::StrCat("checkpoint of step ", folder.step, " is damaged: ", checkpoint.status().message()));
  }
  return found;
}

namespace {

// Returns nullopt if the manifest is damaged or lists a tensor with non-finite values. Does not check the files.
// Possible errors: a failed read (read_error.h).
absl::StatusOr<std::optional<Manifest>> FiniteManifest(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadManifestText(path);
  if (absl::Status read = MarkFailedRead(text.status()); IsFailedRead(read)) return read;
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok() || !manifest->nonfinite.empty()) return std::nullopt;
  return *std::move(manifest);
}

// What decides whether a checkpoint is the best.
struct Candidate {
  size_t folder = 0;
  uint64_t step = 0;
  std::string job_id;
  uint64_t generation = 0;
  std::optional<ManifestEvaluation> evaluation;
};

// Returns the checkpoints with finite values in `folders`, which are sorted from the newest to the oldest. Fails if a
// manifest cannot be read. If `unread` is not null, this holds only up to the newest checkpoint that was evaluated,
// because its data decide which losses are compared; `unread` receives the indexes of older folders whose manifests
// cannot be read.
absl::StatusOr<std::vector<Candidate>> CandidatesOf(const std::vector<StepFolder>& folders, std::set<size_t>* unread) {
  std::vector<Candidate> candidates;
  bool found_evaluated = false;
  for (size_t i = 0; i < folders.size(); ++i) {
    absl::StatusOr<std::optional<Manifest>> read = FiniteManifest(folders[i].path);
    if (!read.ok() && unread != nullptr && found_evaluated) {
      unread->insert(i);
      continue;
    }
    ASSIGN_OR_RETURN(std::optional<Manifest> manifest, std::move(read));
    if (!manifest.has_value() || manifest->step != folders[i].step) continue;
    found_evaluated = found_evaluated || (manifest->evaluation.has_value() && manifest->evaluation->loss.has_value());
    candidates.push_back({.folder = i,
                          .step = manifest->step,
                          .job_id = std::move(manifest->job_id),
                          .generation = manifest->generation,
                          .evaluation = std::move(manifest->evaluation)});
  }
  return candidates;
}

// Whether a later generation of the job is known to have resumed from before this step: it has saved this step or an
// earlier one. A generation that has saved only later steps is not recognized.
bool IsAbandoned(const Candidate& candidate, const std::vector<Candidate>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Candidate& other) {
    return other.job_id == candidate.job_id && other.generation > candidate.generation && other.step <= candidate.step;
  });
}

// Returns the index of the best of these checkpoints, which are sorted from the newest to the oldest. Only losses on
// the data of the newest evaluated checkpoint are compared. `unread`: as in CandidatesOf.
absl::StatusOr<std::optional<size_t>> BestOf(const std::vector<StepFolder>& folders,
                                             std::set<size_t>* unread = nullptr) {
  ASSIGN_OR_RETURN(const std::vector<Candidate> candidates, CandidatesOf(folders, unread));
  const ManifestEvaluation* newest = nullptr;
  std::optional<size_t> best;
  double lowest = 0;
  for (const Candidate& candidate : candidates) {
    if (!candidate.evaluation.has_value() || !candidate.evaluation->loss.has_value()) continue;
    if (IsAbandoned(candidate, candidates)) continue;
    const ManifestEvaluation& evaluation = *candidate.evaluation;
    if (newest == nullptr) newest = &evaluation;
    if (evaluation.data_hash != newest->data_hash || evaluation.tokens != newest->tokens) continue;
    if (best.has_value() && *evaluation.loss > lowest) continue;
    best = candidate.folder;
    lowest = *evaluation.loss;
  }
  return best;
}

}  // namespace

absl::StatusOr<std::optional<StepFolder>> FindBest(const std::string& run_folder) {
  ASSIGN_OR_RETURN(const std::vector<StepFolder> folders, ListCheckpoints(run_folder));
  ASSIGN_OR_RETURN(const std::optional<size_t> best, BestOf(folders));
  if (!best.has_value()) return std::nullopt;
  return folders[*best];
}

absl::StatusOr<std::string> ResolveBest(const std::string& path) {
  const std::filesystem::path given(path);
  const std::string run_folder = given.parent_path().string();
  if (given.filename() != kBestName || FileExists(path) || !FileExists(run_folder)) return path;
  ASSIGN_OR_RETURN(const std::optional<StepFolder> best, FindBest(run_folder));
  if (best.has_value()) return best->path;
  return absl::NotFoundError(
      absl::StrCat(run_folder,
                   " has no best checkpoint, because none of its good checkpoints has a finite loss "
                   "of an evaluation; trainctl checkpoint ls shows them, and "
                   "a job with train.evaluate.every_steps evaluates"));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpointOrNewest(const std::string& given,
                                                                   std::vector<std::string>& skipped) {
  ASSIGN_OR_RETURN(const std::string path, ResolveBest(given));
  if (!FileExists(path)) return absl::NotFoundError(absl::StrCat(path, " does not exist"));
  if (FileExists(JoinPath(path, kManifestName))) return Checkpoint::Open(path);
  ASSIGN_OR_RETURN(FoundCheckpoint found, FindCheckpoint(path));
  skipped.insert(skipped.end(), found.damaged.begin(), found.damaged.end());
  if (found.checkpoint != nullptr) return std::move(found.checkpoint);
  if (found.damaged.empty()) {
    return absl::NotFoundError(absl::StrCat(path, " is not a checkpoint and contains no step-* folder"));
  }
  return absl::DataLossError(
      absl::StrCat("no checkpoint in ", path, " can be used: ", absl::StrJoin(found.damaged, "; ")));
}

absl::Status RemoveCheckpoint(const std::string& path, FileSystem& file_system) {
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointLease> lease, CheckpointLease::ToRemove(path));
  const std::string renamed = absl::StrCat(path, ".pruned", kPartialSuffix);
  RETURN_IF_ERROR(file_system.RemoveAll(renamed));
  RETURN_IF_ERROR(file_system.RenameOrExchange(path, renamed));
  // The new name must be durable before files are removed, because a crash could otherwise leave the checkpoint
  // under its original name, with files missing.
  RETURN_IF_ERROR(file_system.SyncFolder(std::filesystem::path(path).parent_path().string()));
  return file_system.RemoveAll(renamed);
}

absl::StatusOr<std::vector<uint64_t>> PruneCheckpoints(const std::string& run_folder, uint64_t newest_step,
                                                       const Retention& retention,
                                                       const std::set<uint64_t>& protected_steps,
                                                       FileSystem& file_system,
                                                       const std::function<absl::Status()>& may_remove) {
  std::vector<uint64_t> removed;
  if (retention.keep == 0) return removed;
  ASSIGN_OR_RETURN(std::vector<StepFolder> folders, ListCheckpoints(run_folder));
  std::erase_if(folders, [&](const StepFolder& folder) { return folder.step > newest_step; });
  std::optional<size_t> best;
  std::set<size_t> unread;  // each may be the best, so it is retained
  if (retention.keep_best) {
    ASSIGN_OR_RETURN(best, BestOf(folders, &unread));
  }
  bool found_finite = false;
  for (size_t i = 0; i < folders.size(); ++i) {
    const bool is_retained = i < retention.keep || retention.IsMilestone(folders[i].step) ||
                             protected_steps.contains(folders[i].step) || best == i || unread.contains(i);
    // The newest checkpoint with finite values is always retained. It is usually the first one, so that without
    // keep_best no other manifest is read.
    if (!found_finite) {
      ASSIGN_OR_RETURN(const std::optional<Manifest> manifest, FiniteManifest(folders[i].path));
      found_finite = manifest.has_value();
      if (found_finite) continue;
    }
    if (is_retained) continue;
    RETURN_IF_ERROR(may_remove == nullptr ? absl::OkStatus() : may_remove());
    absl::Status status = RemoveCheckpoint(folders[i].path, file_system);
    if (absl::IsUnavailable(status)) continue;  // being read; the next save tries again
    RETURN_IF_ERROR(status);
    removed.push_back(folders[i].step);
  }
  return removed;
}

}  // namespace trainyard
