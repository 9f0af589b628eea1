// The write-once values that the ranks of a generation exchange to connect (rendezvous).
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Values are no longer sent to hosts: the store is sealed, or its generation is over.
void CloseStore(Job& job);

// Sends a host that has just attached all values of its jobs.
void SendStoredValues(Turn& turn, const Host& host);

}  // namespace trainyard
