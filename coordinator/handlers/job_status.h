// A job as the API reports it.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns all of it, with ranks, checkpoints and decisions.
v1::Job MakeJob(const Turn& turn, const Job& job);

// Returns what a list shows: without the parts that grow with the job.
v1::Job MakeHead(const Job& job);

}  // namespace trainyard
