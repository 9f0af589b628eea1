#include "worker/trainer/step_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard {

std::string StepLog::Line(const StepRecord& record, double now_s) {
  const bool due =
      !last_written_s_.has_value() || now_s - *last_written_s_ >= kIntervalS || record.step == steps_total_;
  if (!due) return "";
  last_written_s_ = now_s;
  std::string line = absl::StrFormat("step %d of %d, loss %.4f", record.step, steps_total_, record.loss);
  if (record.step_s > 0) {
    absl::StrAppendFormat(&line, ", %.0f tokens/s", static_cast<double>(record.tokens) / record.step_s);
  }
  return record.skipped ? absl::StrCat(line, ", its update was skipped") : line;
}

}  // namespace trainyard
