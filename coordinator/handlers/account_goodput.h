// The ledger of goodput of a job (policy/goodput), kept up to date: before the ranks begin to spend their time on
// another part of it, all time up to now is added to the current part.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Accounts for all time up to now. REQUIRES: called before a change of the state, the phase of rank 0 or the desired
// trainers.
void AccountGoodput(const Turn& turn, Job& job);

// Returns the ledger as it would be at `steady`; changes nothing.
v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady);

}  // namespace trainyard
