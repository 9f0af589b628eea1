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
#include "worker/checkpoint/catalog.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/settle.h"
#include "worker/collectives/communicator.h"
#include "worker/trainer/config.h"

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

// For rank 0, which holds the folder's lock. Looks at manifests, names and lengths: no byte of the rest is read.
// Possible errors: FailedPrecondition when the folder is not empty and the job does not go on from it, or when the
// checkpoint is beyond the job's last step; DataLoss when there are checkpoints and none can be trusted; NotFound
// (IsCheckpointMissing) when the one asked for, and every other, is not there. What another job has left is gone on
// from only where a person has asked for that. Partials are settled first: `settled` is of RunFolder.
absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const std::optional<JobGeneration>& settled,
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
