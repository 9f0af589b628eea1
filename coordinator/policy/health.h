// Decides from the time of the last contact whether a host is reachable. Pure. A host without contact is *unreachable*,
// not *failed*: trainers continue without their daemon and without the coordinator, so nothing here ends a rank;
// policy/host_loss decides when a host is lost.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace trainyard {

struct HostFacts {
  bool attached = false;    // its stream is open
  absl::Time last_contact;  // time of the last message of any kind; the coordinator's start if there was none
  absl::Duration lease;
};

struct HostContact {
  bool reachable = false;
  std::string reason;  // "no contact for 3.2s (lease 3s)"
};

HostContact CheckContact(absl::Time now, const HostFacts& facts);

// Three heartbeats are sent per lease: one lost packet is normal, two are suspicious.
absl::Duration HeartbeatInterval(absl::Duration lease);

// How regularly a host's messages arrive: smoothed mean and mean deviation of the gaps between messages.
struct HeartbeatGaps {
  absl::Duration mean;
  absl::Duration deviation;
};

// The limit, as a multiple of the configured lease, to which the lease of a host with irregular messages may grow.
inline constexpr int kLeaseGrowth = 4;

// Adds one gap. A gap longer than the longest lease is an outage and is ignored. `base`: the configured lease.
void ObserveGap(absl::Duration gap, absl::Duration base, HeartbeatGaps& gaps);

// The mean gap plus four deviations, but at least `base` and at most kLeaseGrowth times `base`.
absl::Duration AdaptiveLease(absl::Duration base, const HeartbeatGaps& gaps);

}  // namespace trainyard
