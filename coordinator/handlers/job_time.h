// How long a job has run, and how long it will still run.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// The time since the job was first placed, without the time in which it was queued or paused. Computed from the
// ledger, which is durable and does not depend on the wall clock.
absl::Duration UsedTime(const Turn& turn, const Job& job);

// Estimates from recent step times how long the job's group still runs: to its last step, or to its time limit.
// None: it cannot be known; `why` receives the reason.
std::optional<absl::Duration> TimeToEnd(const Turn& turn, const Job& job, std::string* why);

}  // namespace trainyard
