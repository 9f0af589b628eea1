// Moves a job through its lifecycle as far as the facts about its ranks allow. Called after every event that touched
// the job (Turn::Touch), so that no handler has to know which fact was the last one missing.
#pragma once

#include "coordinator/core/turn.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {

void AdvanceJob(Turn& turn, Job& job);

// Whether each rank of the generation has reported its exit, or is known to be gone without one.
bool AllEnded(const Job& job);
// Whether every rank has reported that it made all steps; some may not have exited.
bool AllFinished(const Job& job);

// Returns the facts from which policy/recovery decides when the job's generation has failed.
RecoveryFacts FactsForRecovery(const Turn& turn, const Job& job);

}  // namespace trainyard
