// What a trainer has told and the daemon may not have yet: facts, numbered and kept until they are acknowledged, and
// rank 0's reports, of which the newest limits::kTrainerReports are kept so that a new daemon can be told them again.
// Pure: no thread, clock or network; the link asks it what to send next.
//
// Facts wait for the reports told before them: `saved` of step S never overtakes the report of step S.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "worker/link/link.h"

namespace trainyard {

struct NumberedFact {
  uint64_t sequence = 0;
  int64_t time_unix_ms = 0;
  TrainerFact fact;
};

struct ReportBatch {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;  // of the last of `steps`, or of one sent before
  uint64_t dropped_steps = 0;     // since the first report, over all batches
};

class Outbox {
 public:
  uint64_t AddFact(const TrainerFact& fact, int64_t time_unix_ms);
  void AddStep(const StepRecord& record);
  void AddEval(const EvalRecord& record);

  // Facts up to `sequence` are durable and are forgotten.
  void Acknowledge(uint64_t sequence);
  uint64_t acknowledged() const { return acknowledged_; }

  // After a stream was opened anew: everything kept counts as unsent.
  void Rewind();

  bool has_reports() const { return next_report_ < reports_.size(); }
  bool has_facts() const { return next_fact_ < facts_.size(); }

  // The next reports in order, at most limits::kReportsPerMessage; a batch ends after an evaluation, so that within one
  // all steps come before all evaluations. Empty when there is none.
  ReportBatch TakeReports();
  std::optional<NumberedFact> TakeFact();

 private:
  using Report = std::variant<StepRecord, EvalRecord>;
  void AddReport(Report report);

  std::deque<NumberedFact> facts_;  // not acknowledged
  size_t next_fact_ = 0;            // index of the first unsent
  uint64_t last_sequence_ = 0;
  uint64_t acknowledged_ = 0;
  std::deque<Report> reports_;
  size_t next_report_ = 0;
  uint64_t dropped_steps_ = 0;  // that fell out unsent
};

}  // namespace trainyard
