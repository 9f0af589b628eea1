// The facts about a trainer of the current generation: started, registered, ready, finished, refused, broken, exited.
// Each fact may arrive twice (a daemon that lost its stream, a trainer that lost its daemon); the second changes
// nothing.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);

}  // namespace trainyard
