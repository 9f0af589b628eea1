// Values of keys set to `auto` that only a host can choose (threads, kernels, network interface), merged into the job's
// decisions: one line per key for all hosts.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

void RecordHostDecisions(Turn& turn, Job& job, const HostName& host, const v1::HostDecisions& decided);

}  // namespace trainyard
