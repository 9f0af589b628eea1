// A job as the API reports it.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns the whole job, with ranks, checkpoints and decisions.
v1::Job MakeJob(const Turn& turn, const Job& job);

// Returns the job as a list shows it, without the parts whose size grows.
v1::Job MakeHead(const Job& job);
// Returns the fields of MakeHead that a list on the status page shows: the name and the number of ranks instead of the
// whole spec, and only the beginning of the reason. It costs much less, because specs and reasons may be large.
v1::Job MakeBrief(const Job& job);

}  // namespace trainyard
