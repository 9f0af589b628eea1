#include "coordinator/policy/health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trainyard {

HostContact CheckContact(absl::Time now, const HostFacts& facts) {
  absl::Duration silent = std::max(now - facts.last_contact, absl::ZeroDuration());
  if (silent <= facts.lease) {
    return {.reachable = true,
            .reason = facts.attached ? "attached" : "its stream has ended, but its lease has not expired"};
  }
  std::string silence = absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(100)));
  return {.reachable = false,
          .reason = absl::StrCat("no contact for ", silence, " (lease ", absl::FormatDuration(facts.lease), ")")};
}

absl::Duration HeartbeatInterval(absl::Duration lease) { return std::max(lease / 3, absl::Milliseconds(20)); }

void ObserveGap(absl::Duration gap, absl::Duration base, HeartbeatGaps& gaps) {
  if (gap <= absl::ZeroDuration() || gap > base * kLeaseGrowth) return;
  // The weights of TCP's estimate of round-trip times (RFC 6298): the lease grows quickly and shrinks slowly.
  absl::Duration error = gap - gaps.mean;
  gaps.mean += error / 8;
  gaps.deviation += (absl::AbsDuration(error) - gaps.deviation) / 4;
}

absl::Duration AdaptiveLease(absl::Duration base, const HeartbeatGaps& gaps) {
  return std::clamp(gaps.mean + 4 * gaps.deviation, base, base * kLeaseGrowth);
}

}  // namespace trainyard
