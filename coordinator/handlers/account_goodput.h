// The ledger of goodput of a job (policy/goodput), kept up to date: everything up to now is booked to what the ranks
// spend their time with, before that changes.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Books everything up to now. REQUIRES: called before the state, the phase of rank 0 or the desired trainers change.
void AccountGoodput(const Turn& turn, Job& job);

// Returns the ledger as it would be at `steady`; changes nothing.
v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady);

}  // namespace trainyard
