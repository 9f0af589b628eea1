// A pipeline whose stages sleep instead of computing: the executor, its channels and its strategy are the product's, so
// the measured bubble shows what they add to the bubble of the schedule.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tests/parity/rank_pool.h"

namespace trainyard {

// The main "sleep" of a pool: runs one step and reports lines "name=number" (NumbersIn): start_us and end_us by the
// steady clock of the machine, and busy_us, the time that the rank slept. `arguments`: "SCHEDULE CHUNKS MICRO_BATCHES
// FORWARD_MS", where FORWARD_MS is the time of forward through a chunk; backward takes twice as long.
absl::StatusOr<std::string> SleepMain(const PoolRank& rank, const std::string& arguments);

}  // namespace trainyard
