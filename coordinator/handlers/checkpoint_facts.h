// Handles what rank 0 reports about checkpoints: a complete one is granted its final name or refused; a finished save
// becomes the step to restart from; a failed save is reported and training continues; a restore that fell back to an
// older checkpoint removes the newer ones from the record. docs/decisions/0006-saves.md has the protocol.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Applies one fact of a trainer of the current generation: save_ready, saved, save_failed or restored.
void ApplyCheckpointFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);

// Called when rank 0 is ready. If the group had restored a checkpoint, rank 0 would have reported that before, and the
// grants of earlier generations would be gone. So if some are still recorded, the group starts without a checkpoint.
// Removes these grants, and publishes that their checkpoints could not be used.
void ResolveGrantsWithoutRestore(Turn& turn, Job& job);

// Records a new checkpoint as the newest one, and removes those of later steps and those beyond checkpoint.keep.
void RecordCheckpoint(Turn& turn, Job& job, const v1::CheckpointInfo& info);

// Counts the steps up to `step` as saved in the goodput of the job.
void CountSavedSteps(Turn& turn, Job& job, uint64_t step);

// Returns a granted checkpoint in the form of a recorded one.
v1::CheckpointInfo MakeInfo(const v1::CheckpointGrant& grant);

}  // namespace trainyard
