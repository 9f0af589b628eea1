// Where a run goes on from. Rank 0 alone chooses and verifies the checkpoint; it tells the others step and manifest
// hash through the communicator, and they load exactly that. The same message proves that all ranks see one run folder.
//
//   rank 0   ChooseRestorePoint ─┐
//   all      AgreeOnRestorePoint ┴▶ RestorePoint ▶ LoadState
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  // What the log should say: checkpoints passed over, what an interrupted save left.
  std::vector<std::string> notes;

  uint64_t step() const { return checkpoint == nullptr ? 0 : checkpoint->manifest().step; }
};

// For rank 0, which holds the folder's lock. Possible errors: FailedPrecondition when the folder is not empty and the
// job does not go on from it, or when the checkpoint is beyond the job's last step; DataLoss when there are checkpoints
// and none can be trusted; NotFound (IsCheckpointMissing) when the one asked for, and every other, is not there.
// Partials are settled first: `settled` is of RunFolder.
absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const std::optional<JobGeneration>& settled,
                                                FileSystem& file_system);

// For every rank; `chosen` is rank 0's and is handed through there, empty on the others. Possible errors:
// FailedPrecondition when this host sees another folder, naming host and path (IsCheckpointMissing where the job has
// left a checkpoint in it); DataLoss; those of a Collective.
absl::StatusOr<RestorePoint> AgreeOnRestorePoint(const StartOrder& order, RestorePoint chosen,
                                                 Communicator& communicator);

// Whether all that is wrong is that this host does not have the checkpoint: another one may, or this one later.
bool IsCheckpointMissing(const absl::Status& status);

}  // namespace trainyard
