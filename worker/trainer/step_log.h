// Decides which steps rank 0 writes to its log, and how, so that a user who follows the log sees progress: the first
// and the last step, and one every ten seconds between them. metrics.jsonl has all steps. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "worker/link/link.h"

namespace trainyard {

class StepLog {
 public:
  explicit StepLog(uint64_t steps_total) : steps_total_(steps_total) {}

  // "step 120 of 1200, loss 3.2145, 98012 tokens/s"; empty: this step gets no line. `now_s`: of a steady clock.
  std::string Line(const StepRecord& record, double now_s);

 private:
  static constexpr double kIntervalS = 10;
  const uint64_t steps_total_;
  std::optional<double> last_written_s_;
};

}  // namespace trainyard
