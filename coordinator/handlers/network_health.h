// Reports slow networks and full disks. No process is ended because of them; the affected jobs get a notice.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Records what a host's newest heartbeat reported about its clock, its connection to the coordinator and its disk.
void RecordHeartbeat(Turn& turn, Host& host, const Tick::Contact& contact);

// Checks whether the ranks of a job wait for a slow network.
void CheckNetwork(Turn& turn, Job& job);

}  // namespace trainyard
