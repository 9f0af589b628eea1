// The status line at the bottom of the terminal while a job trains. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "client/run_stats.h"
#include "client/terminal.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// " 10 % ████░░░░░░  step 120/1200  loss 3.2145  12.3k tokens/s  ETA 1m02s  lr 2.0e-03". Drops the least important
// parts if the line is wider than `traits.columns`. If `steps_total` is 0, the total is unknown. The bar uses
// '#' and '.' if the locale is not UTF-8.
std::string LiveLine(const v1::StepReport& step, uint64_t steps_total, const RunStats& stats,
                     const TerminalTraits& traits);

}  // namespace trainyard::client
