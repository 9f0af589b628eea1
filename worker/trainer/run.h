// Runs one rank from its order to its exit code, and reports every error to the daemon. Used by tests with a fake link,
// and by main.cc with the real one.
#pragma once

#include <functional>
#include <ostream>

#include "checkpoint/file_system.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/trainer/sizes_of_spec.h"

namespace trainyard {

class Ledger;

struct RunOptions {
  Link& link;
  FileSystem& file_system;
  std::ostream& log;
  // Returns whether SIGTERM came. Called from the loop's thread, at every step.
  std::function<bool()> must_leave;
  Ledger* ledger = nullptr;                            // counts the memory of this process; null: it is not reported
  Clock& clock = Clock::GetSteadyClock();              // of saves
  std::function<void(absl::Duration)> wait = nullptr;  // waits between two tries of the last save; null: sleeps
  SizesOfSpec sizes_of_spec = nullptr;                 // of checkpoints in train.model.init_from
};

// Does not close the link.
TrainerExit RunRank(const StartOrder& order, const RunOptions& options);

// Reports the fact for a status that ended a rank, and returns its exit code. Also called for failures before an order
// has arrived.
TrainerExit ReportFailure(const absl::Status& status, uint64_t step, Link& link, std::ostream& log);

}  // namespace trainyard
