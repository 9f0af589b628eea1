// Judges a host by when it was last heard of. Pure. Contact lost is *unreachable*, not *failed*: trainers go on without
// their daemon and without the coordinator, so nothing here ends a rank; what does is policy/host_loss.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace trainyard {

struct HostFacts {
  bool attached = false;  // its stream is open
  absl::Time last_heard;  // any message counts; the coordinator's start where there was none yet
  absl::Duration lease;
};

struct HostJudgement {
  bool reachable = false;
  std::string reason;  // "not heard of for 3.2 s (lease 3 s)"
};

HostJudgement JudgeHost(absl::Time now, const HostFacts& facts);

// Heartbeats come three times a lease: one lost packet is normal, two suspicious.
absl::Duration HeartbeatInterval(absl::Duration lease);

// How evenly a host is heard of: smoothed mean and mean deviation of the gaps between two messages.
struct HeartbeatGaps {
  absl::Duration mean;
  absl::Duration deviation;
};

// A lease grows to this many times the configured one, for a host whose messages come unevenly.
inline constexpr int kLeaseGrowth = 4;

// Takes one gap into account. One longer than the longest lease is an outage, not unevenness, and changes nothing.
void ObserveGap(absl::Duration gap, absl::Duration base, HeartbeatGaps& gaps);

// The mean gap and four deviations, but not less than `base` nor more than kLeaseGrowth times that.
absl::Duration LeaseOf(absl::Duration base, const HeartbeatGaps& gaps);

}  // namespace trainyard
