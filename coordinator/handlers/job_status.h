// A job as the API reports it.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns the whole job, with ranks, checkpoints and decisions.
v1::Job MakeJob(const Turn& turn, const Job& job);

// Returns the job as a list shows it, without the parts whose size grows.
v1::Job MakeHead(const Job& job);
// The same without the spec, except its name and its number of ranks, and with the beginning of its reason. It
// costs much less, because specs and reasons may be large.
v1::Job MakeBrief(const Job& job);

}  // namespace trainyard
