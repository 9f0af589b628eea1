#include "worker/trainer/restore.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {
namespace {

constexpr size_t kDamagedShown = 3;
constexpr char kMissingUrl[] = "trainyard/checkpoint_missing";
constexpr absl::Duration kFolderPatience = absl::Seconds(3);

// What rank 0 tells the others, as the bytes of a tensor.
struct Announcement {
  uint64_t step;           // of the checkpoint, if there is one
  char manifest_hash[32];  // zeros: there is none, all begin anew

  bool from_checkpoint() const { return manifest_hash[0] != 0; }
  char token[16];
};

absl::Status Missing(absl::Status status) {
  status.SetPayload(kMissingUrl, absl::Cord());
  return status;
}

absl::Status CheckFound(const StartOrder& order, const FoundCheckpoint& found) {
  const std::string& folder = order.config.checkpoint_dir;
  if (found.checkpoint == nullptr && !found.damaged.empty()) {
    auto end = found.damaged.begin() + static_cast<long>(std::min(found.damaged.size(), kDamagedShown));
    return absl::DataLossError(absl::StrCat("none of the ", found.damaged.size(), " checkpoints in ", folder,
                                            " can be trusted: ", absl::StrJoin(found.damaged.begin(), end, "; "),
                                            "; restore them from a copy, or choose another checkpoint.dir"));
  }
  if (found.checkpoint == nullptr && order.restart_step.has_value()) {
    return Missing(absl::NotFoundError(absl::StrCat("the checkpoint of step ", *order.restart_step,
                                                    " that was recorded is not in ", folder, " as host ", order.host,
                                                    " sees it, and there is no other; is the folder shared?")));
  }
  if (found.checkpoint != nullptr && found.checkpoint->manifest().step > order.config.steps) {
    return absl::FailedPreconditionError(absl::StrCat(found.checkpoint->path(), " is beyond train.steps ",
                                                      order.config.steps,
                                                      ": raise train.steps, or choose another "
                                                      "checkpoint.dir"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const std::optional<JobGeneration>& settled,
                                                FileSystem& file_system) {
  RestorePoint point;
  // A later generation finds what the one before has left, whether or not the user asked to resume.
  bool goes_on = order.resume || order.generation > 1 || order.restart_step.has_value();
  if (!goes_on) {
    RETURN_IF_ERROR(CheckEmpty(order.config.checkpoint_dir));
    return point;
  }
  SettleOptions settle{.job_id = order.job_id, .settled = settled};
  for (const GrantedSave& grant : order.grants) settle.granted.insert(grant.manifest_hash);
  ASSIGN_OR_RETURN(point.notes, SettlePartials(order.config.checkpoint_dir, settle, file_system));
  ASSIGN_OR_RETURN(FoundCheckpoint found, FindCheckpoint(order.config.checkpoint_dir));
  RETURN_IF_ERROR(CheckFound(order, found));
  point.notes.insert(point.notes.end(), found.damaged.begin(), found.damaged.end());
  point.checkpoint = std::move(found.checkpoint);
  return point;
}

absl::StatusOr<RestorePoint> AgreeOnRestorePoint(const StartOrder& order, RestorePoint chosen,
                                                 Communicator& communicator) {
  if (order.world_size == 1) return chosen;
  const std::string& folder = order.config.checkpoint_dir;
  at::Tensor bytes = at::zeros({sizeof(Announcement)}, at::kByte);
  auto* announcement = static_cast<Announcement*>(bytes.mutable_data_ptr());
  std::unique_ptr<SharedFolderToken> token;
  if (order.rank == 0) {
    ASSIGN_OR_RETURN(token, SharedFolderToken::Leave(folder));
    announcement->step = chosen.step();
    std::memcpy(announcement->token, token->name().data(), sizeof announcement->token);
    if (chosen.checkpoint != nullptr) {
      std::memcpy(announcement->manifest_hash, chosen.checkpoint->manifest_hash().data(),
                  sizeof announcement->manifest_hash);
    }
  }
  RETURN_IF_ERROR(communicator.Broadcast(bytes, /*root=*/0)->Wait()) << "while agreeing on where to start";
  if (order.rank != 0) {
    absl::string_view name(announcement->token, sizeof announcement->token);
    absl::Status found = FindToken(folder, name, order.host, kFolderPatience);
    if (!found.ok()) return announcement->from_checkpoint() ? Missing(std::move(found)) : found;
    if (announcement->from_checkpoint()) {
      std::string path = JoinPath(folder, StepFolderName(announcement->step));
      // Rank 0 has read every byte of it; of what is loaded here every piece is hashed again.
      ASSIGN_OR_RETURN(chosen.checkpoint, Checkpoint::OpenVerified(path), << "as host " << order.host << " sees it");
      absl::string_view hash(announcement->manifest_hash, sizeof announcement->manifest_hash);
      if (chosen.checkpoint->manifest_hash() != hash) {
        return absl::FailedPreconditionError(absl::StrCat("host ", order.host, ": ", path, " has the manifest hash ",
                                                          chosen.checkpoint->manifest_hash(), ", rank 0 reads ", hash,
                                                          "; checkpoint.dir must be one folder on all hosts"));
      }
    }
  }
  // The token goes once everyone has looked.
  RETURN_IF_ERROR(communicator.Barrier()->Wait()) << "while the ranks look at checkpoint.dir";
  return chosen;
}

bool IsCheckpointMissing(const absl::Status& status) { return status.GetPayload(kMissingUrl).has_value(); }

}  // namespace trainyard
