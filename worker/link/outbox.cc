#include "worker/link/outbox.h"

#include "common/limits.h"

namespace trainyard {

uint64_t Outbox::AddFact(const TrainerFact& fact, int64_t time_unix_ms) {
  facts_.push_back({.sequence = ++last_sequence_, .time_unix_ms = time_unix_ms, .fact = fact});
  return last_sequence_;
}

void Outbox::AddStep(const StepRecord& record) { AddReport(record); }
void Outbox::AddEval(const EvalRecord& record) { AddReport(record); }

void Outbox::AddReport(Report report) {
  reports_.push_back(std::move(report));
  if (reports_.size() <= limits::kTrainerReports) return;
  if (next_report_ > 0) {
    --next_report_;
  } else if (std::holds_alternative<StepRecord>(reports_.front())) {
    ++dropped_steps_;
  }
  reports_.pop_front();
}

void Outbox::Acknowledge(uint64_t sequence) {
  while (!facts_.empty() && facts_.front().sequence <= sequence) {
    acknowledged_ = facts_.front().sequence;
    facts_.pop_front();
    if (next_fact_ > 0) --next_fact_;
  }
}

void Outbox::Rewind() {
  next_fact_ = 0;
  next_report_ = 0;
}

ReportBatch Outbox::TakeReports() {
  ReportBatch batch;
  batch.dropped_steps = dropped_steps_;
  while (has_reports() && batch.steps.size() < limits::kReportsPerMessage) {
    const Report& report = reports_[next_report_++];
    if (const EvalRecord* eval = std::get_if<EvalRecord>(&report)) {
      batch.evals.push_back(*eval);
      break;
    }
    batch.steps.push_back(std::get<StepRecord>(report));
  }
  return batch;
}

std::optional<NumberedFact> Outbox::TakeFact() {
  if (!has_facts()) return std::nullopt;
  return facts_[next_fact_++];
}

}  // namespace trainyard
