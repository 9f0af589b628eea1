// Keeps the goodput ledger of a job up to date. The ledger divides the time of the ranks into parts such as training
// and saving (policy/goodput). Before the current part changes, all time up to now is added to it.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Accounts for all time up to now. REQUIRES: called before a change of the state, the phase of rank 0 or the desired
// trainers.
void AccountGoodput(const Turn& turn, Job& job);

// If the wall clock was set since the last call, records by how much it is ahead of the steady clock in the ledgers of
// all unfinished jobs. Otherwise the next coordinator would count the change as time of the jobs, and might end a
// command because of its time limit. Called for each tick.
void RecordSetWallClock(Turn& turn);

// Returns the ledger as it would be at `steady`; changes nothing.
v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady);

}  // namespace trainyard
