// Jobs over links that lose packets for a long time but are never cut: no host may be given up because of the loss.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "tests/sim/world.h"

namespace trainyard::sim {

struct LossyReport {
  absl::Duration time;  // simulated time
  uint64_t worlds = 0;
  uint64_t jobs = 0;
  Decisions decisions;
  uint64_t generations_ended = 0;
  std::optional<Scenario> failed;  // the first scenario with a problem
  std::string problems;            // by seed; empty: none
};

// Runs worlds of about 20 minutes each until this much simulated time has passed or an invariant is broken. A lost
// host, a reported hang, a generation that ended before its job, or a broken invariant is a problem.
LossyReport RunLossyMinutes(uint64_t first_seed, absl::Duration time);

// "1003 simulated minutes under loss in 50 worlds: ..."
std::string Describe(const LossyReport& report);

}  // namespace trainyard::sim
