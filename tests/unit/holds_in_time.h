// Waits for what another thread does.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace trainyard {

// Returns whether the condition holds within 20 s.
template <typename Condition>
bool HoldsInTime(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  return condition();
}

}  // namespace trainyard
