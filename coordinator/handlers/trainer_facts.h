// The facts about a trainer of the current generation, except those about checkpoints (checkpoint_facts.h).
// A fact may arrive twice, after a daemon has lost its stream or a trainer has lost its daemon. The second arrival
// changes nothing.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// The program of a job with `command` reports no facts: once it has been started, it counts as ready. Does nothing for
// other jobs.
void MarkCommandReady(const Job& job, Rank& rank);

void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);

}  // namespace trainyard
