// Tracks which hosts can be reached (policy/health): a host is unreachable if nothing was received from it during its
// lease.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Records that a message of the host was received at `time`.
void RecordContact(Turn& turn, Host& host, absl::Time time);

// Returns the host's lease: the configured one, or longer if its messages arrive unevenly.
absl::Duration LeaseFor(const State& state, const Host& host);

// Whether the host is known and reachable.
bool IsReachable(const State& state, const HostName& name);

// Updates Host::reachable, and publishes changes. Called by the tick.
void UpdateReachability(Turn& turn);

}  // namespace trainyard
