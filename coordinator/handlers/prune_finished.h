// Forgets the oldest finished jobs, so that neither the store nor memory grows without limit.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Forgets the oldest finished jobs beyond the limit.
void PruneFinished(Turn& turn);

// What a host still runs of this job is a leftover from now on.
void RememberForgotten(Turn& turn, const JobId& id);

}  // namespace trainyard
