// Forgets the oldest finished jobs, so that neither the store nor memory grows without limit.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Deletes the oldest finished jobs beyond CoreOptions::finished_jobs.
void PruneFinished(Turn& turn);

// Records the id of a removed job, so that trainers of it that a host still runs are ended. Trainers of a job that the
// coordinator has never known would be left alone.
void RememberForgotten(Turn& turn, const JobId& id);

}  // namespace trainyard
