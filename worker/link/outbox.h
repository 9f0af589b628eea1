// Stores what a trainer has reported: facts, which are numbered and stored until the daemon acknowledges that the
// coordinator has them, and rank 0's reports, of which the newest limits::kTrainerReports are stored so that they can
// be sent again to a new daemon. Pure: no thread, clock or network; the link asks it what to send next.
//
// Facts are sent after the reports that were added before them: `saved` of step S never overtakes the report of step S.
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
  std::vector<EvalRecord> evals;  // evaluations after the last of `steps`, or after a step sent before
  uint64_t dropped_steps = 0;     // in total, since the first report
};

class Outbox {
 public:
  uint64_t AddFact(const TrainerFact& fact, int64_t time_unix_ms);
  void AddStep(const StepRecord& record);
  void AddEval(const EvalRecord& record);

  // Facts up to `sequence` are durable, so they are removed.
  void Acknowledge(uint64_t sequence);
  uint64_t acknowledged() const { return acknowledged_; }

  // After a stream was reopened: everything stored counts as unsent.
  void Rewind();

  bool has_reports() const { return next_report_ < reports_.size(); }
  bool has_facts() const { return next_fact_ < facts_.size(); }

  // Returns the next reports in order, at most limits::kReportsPerMessage. A batch ends after an evaluation, so that
  // within a batch all steps come before all evaluations. Empty if there are none.
  ReportBatch TakeReports();
  std::optional<NumberedFact> TakeFact();

 private:
  using Report = std::variant<StepRecord, EvalRecord>;
  void AddReport(Report report);

  std::deque<NumberedFact> facts_;  // without acknowledgement
  size_t next_fact_ = 0;            // index of the first unsent fact
  uint64_t last_sequence_ = 0;
  uint64_t acknowledged_ = 0;
  std::deque<Report> reports_;
  size_t next_report_ = 0;
  uint64_t dropped_steps_ = 0;  // removed before they were sent
};

}  // namespace trainyard
