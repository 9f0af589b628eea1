// Judges a host by when it was last heard of. Pure. Contact lost is *unreachable*, not *failed*: trainers go on without
// their daemon and without the coordinator, so nothing here ends a rank; only its exit record does.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace trainyard {

struct HostFacts {
  bool attached = false;    // its stream is open
  absl::Time last_heard;    // any message counts; the coordinator's start where there was none yet
  absl::Duration lease;
};

struct HostJudgement {
  bool reachable = false;
  std::string reason;  // "not heard of for 3.2 s (lease 3 s)"
};

HostJudgement JudgeHost(absl::Time now, const HostFacts& facts);

// Heartbeats come three times a lease: one lost packet is normal, two suspicious.
absl::Duration HeartbeatInterval(absl::Duration lease);

}  // namespace trainyard
