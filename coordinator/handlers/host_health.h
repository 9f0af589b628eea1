// Which hosts can be reached (policy/health): a host is unreachable once nothing was received from it for its lease.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns the host's lease: the configured one, or longer if its messages arrive unevenly.
absl::Duration LeaseFor(const State& state, const Host& host);

// Whether the host is known and reachable.
bool IsReachable(const State& state, const HostName& name);

// Marks hosts that became unreachable or reachable, and publishes it. Called by the tick.
void UpdateReachability(Turn& turn);

}  // namespace trainyard
