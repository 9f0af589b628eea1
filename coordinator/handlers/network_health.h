// Networks that are slow and disks that are full: no process is ended for them; the jobs they affect get a notice.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Takes what a host's newest heartbeat reported about its clock, its connection to the coordinator and its disk.
void TakeBeat(Turn& turn, Host& host, const Tick::Contact& heard);

// Checks whether the ranks of a job wait for a slow network.
void JudgeNetworkOf(Turn& turn, Job& job);

}  // namespace trainyard
