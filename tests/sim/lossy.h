// Jobs over links that lose, delay and reorder for long, but are never cut: nobody may be given up for it.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "tests/sim/world.h"

namespace trainyard::sim {

struct LossyReport {
  absl::Duration time;  // simulated
  uint64_t worlds = 0;
  uint64_t jobs = 0;
  Decisions decisions;
  uint64_t generations_ended = 0;
  std::optional<Scenario> failed;  // the first of which something was wrong
  std::string wrong;               // what should not have come, by seed; empty: nothing
};

// Worlds of about 20 minutes each, until together they have lasted so long. Wrong is a lost host, a hang that was told,
// a generation that ended before its job did, a broken invariant.
LossyReport RunLossyMinutes(uint64_t first_seed, absl::Duration time);

// "1003 simulated minutes under loss in 50 worlds: ..."
std::string Describe(const LossyReport& report);

}  // namespace trainyard::sim
