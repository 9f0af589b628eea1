#include "coordinator/handlers/job_time.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/handlers/account_goodput.h"

namespace trainyard {
namespace {

// The number of recent steps whose mean time is used.
constexpr int kSteps = 32;

// The recent time of a step, without evaluations and saves; 0: not known.
double StepSeconds(const Job& job) {
  double sum = 0;
  int count = 0;
  const auto& reports = job.history.reports();
  for (auto event = reports.rbegin(); event != reports.rend() && count < kSteps; ++event) {
    if (!(*event)->has_step()) continue;
    sum += (*event)->step().step_s();
    ++count;
  }
  return count > 0 ? sum / count : job.head().learned_step_s();
}

}  // namespace

absl::Duration UsedTime(const Turn& turn, const Job& job) {
  const v1::GoodputRecord ledger = AccountedTo(job, turn.steady);
  const uint64_t total_ms = ledger.start_ms() + ledger.train_ms() + ledger.save_ms() + ledger.lost_ms() +
                            ledger.detect_ms() + ledger.recover_ms();
  return absl::Milliseconds(static_cast<int64_t>(total_ms / std::max(1u, job.world_size())));
}

std::optional<absl::Duration> TimeToEnd(const Turn& turn, const Job& job, std::string* why) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.has_command()) {
    const double limit_s = spec.command().time_limit_s();
    if (limit_s > 0) return std::max(absl::ZeroDuration(), absl::Seconds(limit_s) - UsedTime(turn, job));
    *why = absl::StrCat("job ", job.id.value(), " is a command without command.time_limit_s");
    return std::nullopt;
  }
  if (spec.has_probe()) return absl::Seconds(10);  // a probe is short
  const double step_s = StepSeconds(job);
  if (step_s <= 0) {
    *why = absl::StrCat("job ", job.id.value(), " has made no step yet");
    return std::nullopt;
  }
  const uint64_t made = std::max(job.published.step(), job.head().last_step());
  const uint64_t left = spec.train().steps() - std::min(spec.train().steps(), made);
  return absl::Seconds(step_s * static_cast<double>(left));
}

}  // namespace trainyard
