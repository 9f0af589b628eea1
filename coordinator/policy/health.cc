#include "coordinator/policy/health.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace trainyard {

HostJudgement JudgeHost(absl::Time now, const HostFacts& facts) {
  absl::Duration silent = std::max(now - facts.last_heard, absl::ZeroDuration());
  if (silent <= facts.lease) {
    return {.reachable = true, .reason = facts.attached ? "attached" : "its stream ended; the lease still runs"};
  }
  std::string told = absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(100)));
  return {.reachable = false,
          .reason = absl::StrCat("not heard of for ", told, " (lease ", absl::FormatDuration(facts.lease), ")")};
}

absl::Duration HeartbeatInterval(absl::Duration lease) { return std::max(lease / 3, absl::Milliseconds(20)); }

}  // namespace trainyard
