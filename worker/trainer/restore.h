// Where a run goes on from, and how all ranks come to be there. Rank 0 alone chooses; all load, each its own ranges,
// verified as they are read; where one of them cannot, all go to the next older checkpoint. The protocol, and what
// might go wrong with it: docs/decisions/0006-saves.md.
//
//   rank 0   ChooseRestorePoint ─┐
//   all      AgreeOnRestorePoint ┴▶ announced ▶ LoadRestorePoint ▶ RestorePoint
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/catalog.h"
#include "checkpoint/file_system.h"
#include "checkpoint/settle.h"
#include "worker/collectives/communicator.h"
#include "worker/link/config.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {

struct RestorePoint {
  // Null: the run begins with step 1.
  std::unique_ptr<Checkpoint> checkpoint;
  // What the log should say of what an interrupted save left.
  std::vector<std::string> notes;
  // Why newer checkpoints are not gone on from, a sentence each.
  std::vector<std::string> passed_over;

  uint64_t step() const { return checkpoint == nullptr ? 0 : checkpoint->manifest().step; }
};

// What rank 0 has all ranks load.
struct AnnouncedCheckpoint {
  uint64_t step = 0;
  std::string manifest_hash;
};

// What rank 0 knows of the run folder that it has locked.
struct TakenFolder {
  std::optional<JobGeneration> settled = {};  // see RunFolder
  bool claimed = true;
};

// For rank 0, which holds the folder's lock. Looks at manifests, names and lengths: no byte of the rest is read.
// Possible errors: FailedPrecondition when the folder is not empty and the job does not go on from it, when it is to go
// on and there is no checkpoint (unless a fresh start is allowed), or when the
// checkpoint is beyond the job's last step; DataLoss when there are checkpoints and none can be trusted; NotFound
// (IsCheckpointMissing) when the one asked for, and every other, is not there. What another job has left is gone on
// from only where a person has asked for that. Partials are settled first, but nothing is removed before the job has
// claimed the folder.
absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const TakenFolder& folder,
                                                FileSystem& file_system);

// Before the folder is touched: a person who has a run go on from a folder that is not there has mistyped it. Possible
// errors: FailedPrecondition.
absl::Status CheckMayResume(const StartOrder& order);

// For rank 0, once all ranks have loaded and nothing can be refused any more: the folder is this generation's, and what
// lies there is settled for good. Does nothing where it was claimed before. Returns what the log should say. Possible
// errors: those of RunFolder::Claim and SettlePartials.
absl::StatusOr<std::vector<std::string>> ClaimRunFolder(const StartOrder& order, RunFolder& folder,
                                                        FileSystem& file_system);

// For every rank; `chosen` is rank 0's, and of no use on the others. None: all begin anew. Possible errors:
// FailedPrecondition when this host sees another folder, naming host and path (IsCheckpointMissing where the job has
// left a checkpoint in it); those of a Collective.
absl::StatusOr<std::optional<AnnouncedCheckpoint>> AgreeOnRestorePoint(const StartOrder& order,
                                                                       const RestorePoint& chosen,
                                                                       Communicator& communicator);

// Takes what this rank needs, over whatever an earlier call has left. DataLoss: this checkpoint is of no use here; any
// other error: nor would an older one be, and the job is refused.
using LoadCheckpoint = absl::FunctionRef<absl::Status(const Checkpoint& checkpoint)>;
// For every rank, together: has each load the newest checkpoint that all of them can, and returns it. Rank 0 hands in
// what it chose. Possible errors: those of `load`; DataLoss, on rank 0, when there is none, naming why; Unavailable
// when another rank has met such an error; those of a Collective.
absl::StatusOr<RestorePoint> LoadRestorePoint(const StartOrder& order, RestorePoint chosen,
                                              AnnouncedCheckpoint announced, Communicator& communicator,
                                              LoadCheckpoint load);

// Whether all that is wrong is that this host does not have the checkpoint: another one may, or this one later.
bool IsCheckpointMissing(const absl::Status& status);
absl::Status CheckpointMissing(absl::Status status);  // says so of a failure

}  // namespace trainyard
