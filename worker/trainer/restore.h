// Finds the checkpoint from which a run resumes, and loads it on all ranks. Only rank 0 chooses. Each rank loads its
// own ranges and verifies them as it reads; if a rank cannot load them, all ranks try the next older checkpoint. The
// protocol and its failure cases: docs/decisions/0006-saves.md.
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
  // Lines for the log about an interrupted save.
  std::vector<std::string> notes;
  // Why newer checkpoints were not used, a sentence each.
  std::vector<std::string> passed_over;

  uint64_t step() const { return checkpoint == nullptr ? 0 : checkpoint->manifest().step; }
};

// The checkpoint that rank 0 lets all ranks load.
struct AnnouncedCheckpoint {
  uint64_t step = 0;
  std::string manifest_hash;
};

// What rank 0 knows about the run folder that it has locked.
struct LockedFolder {
  std::optional<JobGeneration> settled = {};  // see RunFolder
  bool claimed = true;                        // whether this job has claimed the folder
};

// For rank 0, which holds the folder's lock. Reads manifests, names and lengths, but not the tensors. Possible errors:
// FailedPrecondition if the folder is not empty and the job does not resume, if it must resume and there is no
// checkpoint (unless a fresh start is allowed), or if the checkpoint is beyond the job's last step; DataLoss if there
// are checkpoints but none can be trusted; NotFound (IsCheckpointMissing) if neither the requested checkpoint nor any
// other exists; Unimplemented if a later version of the program wrote the newest one (IsCheckpointMissing holds for it
// if the job has recorded a checkpoint), and a failed read (checkpoint/read_error.h; IsCheckpointMissing holds for it,
// except for a lack of permission if no checkpoint is recorded). Resumes from checkpoints of another job only if the
// user requested that.
// Settles partial folders first, but removes nothing before the job has claimed the folder.
absl::StatusOr<RestorePoint> ChooseRestorePoint(const StartOrder& order, const LockedFolder& folder,
                                                FileSystem& file_system);

// Fails with FailedPrecondition if the user requests a resume without allowing a fresh start and the folder does not
// exist: its path is probably mistyped. Call it before anything creates the folder.
absl::Status CheckMayResume(const StartOrder& order);

// For rank 0, after all ranks have loaded and all reasons to refuse the job were checked: claims the folder for this
// generation and settles its partial folders. Does nothing if the folder was claimed before. Returns lines for
// the log. Possible errors: those of RunFolder::Claim and SettlePartials.
absl::StatusOr<std::vector<std::string>> ClaimRunFolder(const StartOrder& order, RunFolder& folder,
                                                        FileSystem& file_system);

// For every rank; `chosen` is used on rank 0 only. Returns nullopt if training begins with step 1. Possible errors:
// FailedPrecondition if this host does not see the folder of rank 0, naming host and path (IsCheckpointMissing holds
// for it if rank 0 has chosen a checkpoint); those of a Collective.
absl::StatusOr<std::optional<AnnouncedCheckpoint>> AgreeOnRestorePoint(const StartOrder& order,
                                                                       const RestorePoint& chosen,
                                                                       Communicator& communicator);

// Loads what this rank needs, overwriting what an earlier call has loaded. DataLoss: this rank cannot use the
// checkpoint; any other error: it could not use an older one either, or the checkpoint may be good and this host fails
// to read it, so no rank tries another.
using LoadCheckpoint = absl::FunctionRef<absl::Status(const Checkpoint& checkpoint)>;
// Collective: lets each rank load the newest checkpoint that all of them can load, and returns it. Rank 0 passes its
// choice. Possible errors: those of `load`; DataLoss, on rank 0, if there is none, naming the reasons; Unavailable if
// another rank had such an error; those of a Collective.
absl::StatusOr<RestorePoint> LoadRestorePoint(const StartOrder& order, RestorePoint chosen,
                                              AnnouncedCheckpoint announced, Communicator& communicator,
                                              LoadCheckpoint load);

// Returns whether the only problem is that this host does not see the checkpoint, fails to read it, has a trainer that
// is too old to read it, or lacks the data of the job or has other data. Another host may resume the job, or this host
// later.
bool IsCheckpointMissing(const absl::Status& status);
absl::Status CheckpointMissing(absl::Status status);  // makes IsCheckpointMissing true for the error

}  // namespace trainyard
