// The write-once values that the ranks of a generation exchange to connect (rendezvous).
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Releases the values, so that no host is sent them any more. Call it when the store has been sealed (closed for
// writes) or its generation has ended.
void CloseStore(Job& job);

// Sends a host that has just attached all values of its jobs.
void SendStoredValues(Turn& turn, const Host& host);

}  // namespace trainyard
