#include "worker/agent/report_buffer.h"

#include <algorithm>
#include <utility>

#include "common/limits.h"

namespace trainyard::agent {
namespace {

// Steps and evaluations: a user who follows them does not notice this delay.
constexpr absl::Duration kStepsInterval = absl::Milliseconds(50);
// Everything else (phase, work, memory): as often as a trainer reports it.
constexpr absl::Duration kReportInterval = absl::Milliseconds(500);
constexpr int kPhasesMax = 8;
// As many as the coordinator records.
constexpr size_t kCheckpointsMax = 20;

// Keeps the longest duration of each phase, so that none is lost when reports are rare.
void MergePhaseTime(const v1::PhaseTime& time, v1::RankReport& into) {
  for (v1::PhaseTime& known : *into.mutable_phase_times()) {
    if (known.phase() != time.phase()) continue;
    known.set_longest_s(std::max(known.longest_s(), time.longest_s()));
    return;
  }
  if (into.phase_times_size() < kPhasesMax) *into.add_phase_times() = time;
}

}  // namespace

template <typename Report>
uint64_t ReportBuffer::Queue<Report>::Add(const Report& report) {
  if (report.step() <= last_step) return 0;
  last_step = report.step();
  items.push_back(report);
  if (items.size() <= limits::kDaemonReports) return 0;
  items.pop_front();
  if (unsent == 0) return 1;
  --unsent;
  return 0;
}

void ReportBuffer::Add(const v1::RankReport& report, absl::Time now) {
  if (report.dropped_steps() > trainer_dropped_) {
    unreported_dropped_ += report.dropped_steps() - trainer_dropped_;
    trainer_dropped_ = report.dropped_steps();
  }
  for (const v1::StepReport& step : report.steps()) unreported_dropped_ += steps_.Add(step);
  for (const v1::EvalReport& eval : report.evals()) evals_.Add(eval);
  if (report.has_script_checkpoint()) AddCheckpoint(report.script_checkpoint());
  v1::RankReport before = std::exchange(newest_, report);
  for (const v1::PhaseTime& time : before.phase_times()) MergePhaseTime(time, newest_);
  newest_.clear_steps();
  newest_.clear_evals();
  if (!checkpoints_.empty()) *newest_.mutable_script_checkpoint() = checkpoints_.back();
  newest_at_ = now;
  newest_is_unsent_ = true;
}

void ReportBuffer::AddCheckpoint(const v1::ScriptCheckpoint& checkpoint) {
  if (!checkpoints_.empty()) {
    const v1::ScriptCheckpoint& last = checkpoints_.back();
    const bool answers = checkpoint.step() == last.step() && checkpoint.save_request() > last.save_request();
    if (checkpoint.step() <= last.step() && !answers) return;
  }
  checkpoints_.push_back(checkpoint);
  if (checkpoints_.size() <= kCheckpointsMax) return;
  checkpoints_.pop_front();
  if (unsent_checkpoints_ > 0) --unsent_checkpoints_;
}

// By default every report contains the newest checkpoint. If several checkpoints were not sent, each gets a report of
// its own instead, after the reports of steps, because the coordinator expects checkpoints in order.
void ReportBuffer::TakeCheckpoints(std::vector<v1::RankReport>& reports) {
  const size_t first = std::exchange(unsent_checkpoints_, checkpoints_.size());
  if (checkpoints_.size() - first < 2) return;
  for (v1::RankReport& report : reports) report.clear_script_checkpoint();
  v1::RankReport bare = reports.back();
  bare.clear_steps();
  bare.clear_evals();
  bare.clear_dropped_steps();
  bare.clear_phase_times();
  for (size_t i = first; i < checkpoints_.size(); ++i) {
    *reports.emplace_back(bare).mutable_script_checkpoint() = checkpoints_[i];
  }
}

void ReportBuffer::SetProcess(std::string state, double cpu_s) {
  process_state_ = std::move(state);
  process_cpu_s_ = cpu_s;
}

void ReportBuffer::RepeatLast(const v1::TrainerKey& key, bool silent, absl::Time now) {
  *newest_.mutable_key() = key;
  newest_.set_silent(silent);
  if (newest_at_ == absl::Time()) newest_at_ = now;
  newest_is_unsent_ = true;
}

absl::Time ReportBuffer::due() const {
  if (steps_.unsent < steps_.items.size() || evals_.unsent < evals_.items.size()) return sent_at_ + kStepsInterval;
  if (newest_is_unsent_) return sent_at_ + kReportInterval;
  return absl::InfiniteFuture();
}

std::vector<v1::RankReport> ReportBuffer::TakeUnsent(absl::Time now) {
  std::vector<v1::RankReport> reports;
  if (due() == absl::InfiniteFuture()) return reports;
  do {
    v1::RankReport& report = reports.emplace_back(newest_);
    newest_.clear_phase_times();
    report.set_process_state(process_state_);
    report.set_cpu_total_s(process_cpu_s_);
    report.set_age_s(newest_.age_s() + absl::ToDoubleSeconds(now - newest_at_));
    report.set_dropped_steps(std::exchange(unreported_dropped_, 0));
    for (size_t steps_left = limits::kReportsPerMessage; steps_left > 0 && steps_.unsent < steps_.items.size();
         --steps_left) {
      *report.add_steps() = steps_.items[steps_.unsent++];
    }
    // An evaluation is sent after its step.
    bool all_steps = steps_.unsent == steps_.items.size();
    uint64_t reported = report.steps().empty() ? 0 : report.steps().rbegin()->step();
    while (evals_.unsent < evals_.items.size() && (all_steps || evals_.items[evals_.unsent].step() <= reported) &&
           report.evals_size() < static_cast<int>(limits::kReportsPerMessage)) {
      *report.add_evals() = evals_.items[evals_.unsent++];
    }
  } while (steps_.unsent < steps_.items.size() || evals_.unsent < evals_.items.size());
  TakeCheckpoints(reports);
  newest_is_unsent_ = false;
  sent_at_ = now;
  return reports;
}

void ReportBuffer::Rewind() {
  steps_.unsent = 0;
  evals_.unsent = 0;
  unsent_checkpoints_ = 0;
  newest_is_unsent_ = newest_at_ != absl::Time();
  sent_at_ = absl::InfinitePast();
}

}  // namespace trainyard::agent
