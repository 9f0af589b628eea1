#include "worker/trainer/restore.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "checkpoint/read_error.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/saving/sentences.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {
namespace {

constexpr size_t kDamagedShown = 3;
constexpr char kMissingUrl[] = "trainyard/checkpoint_missing";
// How long a network file system may take to show a file.
constexpr absl::Duration kFolderPatience = absl::Seconds(3);
// The slowest rank may still be reading its checkpoint while the others wait for it. Rank 0 may also read all data, to
// compare them with the checkpoint; tokenization, which reads them too, has the same limit (kReadingLimit).
constexpr absl::Duration kLoadingLimit = absl::Hours(12);

// What rank 0 broadcasts, as the bytes of a tensor.
struct Announcement {
  uint64_t step;           // of the checkpoint, if there is one
  char manifest_hash[32];  // zeros: there is none
  char token[16];          // the name of the file that shows whether the ranks share a folder
};

// The outcome of loading one checkpoint on one rank, or on all.
struct Outcome {
  enum Kind { kLoaded, kUnusable, kRefused };
  Kind kind = kLoaded;
  absl::Status status = absl::OkStatus();
};

absl::Status NoCheckpointLeft(const StartOrder& order, const std::vector<std::string>& passed_over) {
  auto end = passed_over.begin() + static_cast<long>(std::min(passed_over.size(), kDamagedShown));
  const std::string reasons = absl::StrJoin(passed_over.begin(), end, "; ");
  if (passed_over.size() == 1) {
    return absl::DataLossError(absl::StrCat("the only checkpoint in ", order.config.checkpoint_dir,
                                            " cannot be trusted: ", reasons,
                                            "; restore it from a copy, or choose another checkpoint.dir"));
  }
  return absl::DataLossError(absl::StrCat("none of the ", passed_over.size(), " checkpoints in ",
                                          order.config.checkpoint_dir, " can be trusted: ", reasons,
                                          "; restore them from a copy, or choose another checkpoint.dir"));
}

// A later generation resumes from its predecessor's checkpoints, whether or not the user requested a resume.
bool Resumes(const StartOrder& order) { return order.resume || order.generation > 1 || order.restart_step.has_value(); }

// If the user requested a resume, training from step 1 must be allowed explicitly.
bool MustFindCheckpoint(const StartOrder& order) {
  return order.resume && !order.allow_fresh_start && !order.restart_step.has_value();
}

absl::Status NothingToResume(const StartOrder& order, absl::string_view found) {
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir ", order.config.checkpoint_dir, " ", found,
                   ", so --resume has nothing to resume from: check the path, or train from step 1 there with "
                   "--allow-fresh-start"));
}

SettleOptions SettleOptionsOf(const StartOrder& order, const LockedFolder& folder) {
  SettleOptions settle{.job_id = order.job_id, .settled = folder.settled, .removes = folder.claimed};
  for (const GrantedSave& grant : order.grants) settle.granted.insert(grant.manifest_hash);
  return settle;
}

absl::Status CheckFound(const StartOrder& order, const LockedFolder& folder, const FoundCheckpoint& found) {
  const std::string& path = order.config.checkpoint_dir;
  if (found.checkpoint == nullptr && !found.damaged.empty()) return NoCheckpointLeft(order, found.damaged);
  if (found.checkpoint == nullptr && order.restart_step.has_value()) {
    return CheckpointMissing(absl::NotFoundError(
        absl::StrCat("the checkpoint of step ", *order.restart_step, " that was recorded is not in ", path, " as host ",
                     order.host, " sees it, and there is no other; is the folder shared?")));
  }
  // A folder that is claimed already belongs to this job, which passed this check before it first claimed the folder.
  if (found.checkpoint == nullptr && MustFindCheckpoint(order) && !folder.claimed)
    return NothingToResume(order, "holds no checkpoint");
  const std::string owner = found.checkpoint == nullptr ? order.job_id : found.checkpoint->manifest().job_id;
  if (!order.resume && !order.restart_step.has_value() && owner != order.job_id) {
    return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", path, " holds checkpoints of job ", owner,
                                                      ", made since this job began, and this job has recorded none: "
                                                      "resume from them with --resume, or choose another "
                                                      "checkpoint.dir"));
  }
  if (found.checkpoint != nullptr && found.checkpoint->manifest().step > order.config.steps) {
    return absl::FailedPreconditionError(absl::StrCat(found.checkpoint->path(), " is beyond train.steps ",
                                                      order.config.steps,
                                                      ": raise train.steps, or choose another "
                                                      "checkpoint.dir"));
  }
  return absl::OkStatus();
}

// Broadcasts rank 0's `checkpoint` and `token`.
absl::StatusOr<Announcement> Announce(const Checkpoint* checkpoint, absl::string_view token,
                                      Communicator& communicator) {
  at::Tensor bytes = at::zeros({sizeof(Announcement)}, at::kByte);
  auto* announcement = static_cast<Announcement*>(bytes.mutable_data_ptr());
  if (communicator.rank() == 0) {
    std::memcpy(announcement->token, token.data(), std::min(token.size(), sizeof announcement->token));
    if (checkpoint != nullptr) {
      announcement->step = checkpoint->manifest().step;
      std::memcpy(announcement->manifest_hash, checkpoint->manifest_hash().data(), sizeof announcement->manifest_hash);
    }
  }
  RETURN_IF_ERROR(communicator.Broadcast(bytes, /*root=*/0)->Wait()) << "while agreeing on where to start";
  return *announcement;
}

std::optional<AnnouncedCheckpoint> CheckpointOf(const Announcement& announcement) {
  if (announcement.manifest_hash[0] == 0) return std::nullopt;
  return AnnouncedCheckpoint{
      .step = announcement.step,
      .manifest_hash = std::string(announcement.manifest_hash, sizeof announcement.manifest_hash)};
}

// A host that fails to read a checkpoint, or whose trainer is of an earlier version, cannot resume from it. The job
// waits for a host that can; the failure may also pass. A job that has recorded no checkpoint is refused because of a
// version, or of a permission that it lacks.
absl::Status MayResumeElsewhere(const StartOrder& order, absl::Status status) {
  const bool has_recorded = order.restart_step.has_value();
  const bool depends_on_host = IsFailedRead(status) ? has_recorded || !absl::IsPermissionDenied(status)
                                                    : has_recorded && absl::IsUnimplemented(status);
  return depends_on_host ? CheckpointMissing(std::move(status)) : status;
}
template <typename T>
absl::StatusOr<T> MayResumeElsewhere(const StartOrder& order, absl::StatusOr<T> found) {
  if (found.ok()) return found;
  return MayResumeElsewhere(order, found.status());
}

// Opens the announced checkpoint on this host; rank 0 has it open already.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenAnnounced(const StartOrder& order,
                                                          const AnnouncedCheckpoint& announced) {
  const std::string path = JoinPath(order.config.checkpoint_dir, StepFolderName(announced.step));
  AwaitFile(JoinPath(path, kManifestName), kFolderPatience);  // if it is missing, opening it reports that
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::OpenUnverified(path);
  if (checkpoint.ok() && (*checkpoint)->manifest_hash() != announced.manifest_hash) {
    return absl::DataLossError(absl::StrCat(path, " has the manifest hash ", (*checkpoint)->manifest_hash(),
                                            ", rank 0 reads ", announced.manifest_hash));
  }
  return checkpoint;
}

// Returns every failure as a value, because the other ranks wait for this rank's outcome.
Outcome TryToLoad(const StartOrder& order, const AnnouncedCheckpoint& announced,
                  std::unique_ptr<Checkpoint>& checkpoint, LoadCheckpoint load) {
  if (checkpoint == nullptr) {
    absl::StatusOr<std::unique_ptr<Checkpoint>> opened = MayResumeElsewhere(order, OpenAnnounced(order, announced));
    const bool depends_on_host = absl::IsUnimplemented(opened.status()) || IsFailedRead(opened.status());
    if (depends_on_host) return {.kind = Outcome::kRefused, .status = opened.status()};
    if (!opened.ok()) return {.kind = Outcome::kUnusable, .status = opened.status()};
    checkpoint = *std::move(opened);
  }
  checkpoint->BeginVerifying(order.rank, order.world_size);
  absl::Status loaded = load(*checkpoint);
  if (loaded.ok()) loaded = checkpoint->FinishVerifying();
  if (loaded.ok()) return {};
  return {.kind = absl::IsDataLoss(loaded) ? Outcome::kUnusable : Outcome::kRefused,
          .status = MayResumeElsewhere(order, std::move(loaded))};
}

// Returns "rank 1 on w2: ..." for the first few ranks whose outcome is `kind`.
absl::StatusOr<std::string> SentencesOf(const StartOrder& order, const Outcome& own, Outcome::Kind kind,
                                        Communicator& communicator) {
  const std::string text = own.kind == kind ? RankSentence(order, own.status.message()) : "";
  ASSIGN_OR_RETURN(std::vector<std::string> sentences, ShareSentences(text, communicator),
                   << "while exchanging which ranks cannot load");
  return JoinFirst(sentences, kDamagedShown, "; ", "; ", "rank");
}

// Returns the outcome of all ranks, the same on each; its status names the ranks that failed, and why.
absl::StatusOr<Outcome> ShareOutcome(const StartOrder& order, const Outcome& own, Communicator& communicator) {
  RETURN_IF_ERROR(communicator.MonitoredBarrier(kLoadingLimit)) << "while the ranks load";
  at::Tensor counts = at::zeros({2}, at::kDouble);
  if (own.kind != Outcome::kLoaded) counts.mutable_data_ptr<double>()[own.kind == Outcome::kRefused] = 1;
  RETURN_IF_ERROR(communicator.AllReduceSum(counts)->Wait()) << "while agreeing on what was loaded";
  const double* sums = counts.const_data_ptr<double>();
  if (sums[0] == 0 && sums[1] == 0) return Outcome{};
  Outcome shared{.kind = sums[1] > 0 ? Outcome::kRefused : Outcome::kUnusable};
  ASSIGN_OR_RETURN(std::string sentences, SentencesOf(order, own, shared.kind, communicator));
  shared.status = absl::UnavailableError(sentences);
  return shared;
}

// On rank 0: stores in `point` the next older checkpoint that looks valid.
absl::Status ChooseOlder(const StartOrder& order, uint64_t step, RestorePoint& point) {
  ASSIGN_OR_RETURN(FoundCheckpoint found,
                   MayResumeElsewhere(order, FindCheckpoint(order.config.checkpoint_dir,
                                                            {.before_step = step, .verify_bytes = false})));
  point.passed_over.insert(point.passed_over.end(), found.damaged.begin(), found.damaged.end());
  point.checkpoint = std::move(found.checkpoint);
  return point.checkpoint == nullptr ? NoCheckpointLeft(order, point.passed_over) : absl::OkStatus();
}

}  // namespace

absl::Status CheckMayResume(const StartOrder& order) {
  if (!MustFindCheckpoint(order) || FileExists(order.config.checkpoint_dir)) return absl::OkStatus();
  return NothingToResume(order, absl::StrCat("is not there, as host ", order.host, " sees it"));
}

absl::StatusOr<std::vector<std::string>> ClaimRunFolder(const StartOrder& order, RunFolder& folder,
                                                        FileSystem& file_system) {
  std::vector<std::string> notes;
  if (folder.claimed()) return notes;
  RETURN_IF_ERROR(folder.Claim());
  if (Resumes(order)) {
    const SettleOptions options = SettleOptionsOf(order, {.settled = folder.settled(), .claimed = true});
    ASSIGN_OR_RETURN(notes,
                     MayResumeElsewhere(order, SettlePartials(order.config.checkpoint_dir, options, file_system)));
  }
  RETURN_IF_ERROR(folder.MarkSettled());
  return notes;
}

absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const LockedFolder& folder,
                                                FileSystem& file_system) {
  RestorePoint point;
  if (!Resumes(order)) {
    RETURN_IF_ERROR(CheckEmpty(order.config.checkpoint_dir));
    return point;
  }
  ASSIGN_OR_RETURN(point.notes, MayResumeElsewhere(order, SettlePartials(order.config.checkpoint_dir,
                                                                         SettleOptionsOf(order, folder), file_system)));
  ASSIGN_OR_RETURN(FoundCheckpoint found,
                   MayResumeElsewhere(order, FindCheckpoint(order.config.checkpoint_dir, {.verify_bytes = false})));
  RETURN_IF_ERROR(CheckFound(order, folder, found));
  point.passed_over = std::move(found.damaged);
  point.checkpoint = std::move(found.checkpoint);
  return point;
}

absl::StatusOr<std::optional<AnnouncedCheckpoint>> AgreeOnRestorePoint(const StartOrder& order,
                                                                       const RestorePoint& chosen,
                                                                       Communicator& communicator) {
  const std::string& folder = order.config.checkpoint_dir;
  std::unique_ptr<SharedFolderToken> token;
  if (order.rank == 0 && order.world_size > 1) {
    ASSIGN_OR_RETURN(token, SharedFolderToken::Create(folder));
  }
  ASSIGN_OR_RETURN(Announcement announcement,
                   Announce(chosen.checkpoint.get(), token == nullptr ? "" : token->name(), communicator));
  const std::optional<AnnouncedCheckpoint> announced = CheckpointOf(announcement);
  if (order.rank != 0) {
    absl::string_view name(announcement.token, sizeof announcement.token);
    absl::Status found = FindToken(folder, name, order.host, kFolderPatience);
    if (!found.ok()) return announced.has_value() ? CheckpointMissing(std::move(found)) : found;
  }
  // The token is removed when every rank has checked it.
  RETURN_IF_ERROR(communicator.Barrier()->Wait()) << "while the ranks look at checkpoint.dir";
  return announced;
}

absl::StatusOr<RestorePoint> LoadRestorePoint(const StartOrder& order, RestorePoint point,
                                              AnnouncedCheckpoint announced, Communicator& communicator,
                                              LoadCheckpoint load) {
  while (true) {
    const Outcome own = TryToLoad(order, announced, point.checkpoint, load);
    ASSIGN_OR_RETURN(Outcome shared, ShareOutcome(order, own, communicator));
    if (shared.kind == Outcome::kLoaded) return point;
    if (shared.kind == Outcome::kRefused) return own.kind == Outcome::kRefused ? own.status : shared.status;
    point.passed_over.push_back(
        absl::StrCat("checkpoint of step ", announced.step, " is damaged: ", shared.status.message()));
    point.checkpoint = nullptr;
    const absl::Status older = order.rank == 0 ? ChooseOlder(order, announced.step, point) : absl::OkStatus();
    // If no checkpoint is left, rank 0 first informs the other ranks, then reports why.
    ASSIGN_OR_RETURN(Announcement announcement, Announce(point.checkpoint.get(), "", communicator));
    RETURN_IF_ERROR(older);
    const std::optional<AnnouncedCheckpoint> next = CheckpointOf(announcement);
    if (!next.has_value()) return absl::UnavailableError("rank 0 has found no checkpoint that all ranks can load");
    announced = *next;
  }
}

absl::Status CheckpointMissing(absl::Status status) {
  status.SetPayload(kMissingUrl, absl::Cord());
  return status;
}

bool IsCheckpointMissing(const absl::Status& status) { return status.GetPayload(kMissingUrl).has_value(); }

}  // namespace trainyard
