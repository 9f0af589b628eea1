#include "client/metrics_source.h"

#include "absl/strings/str_cat.h"
#include "common/plural.h"

namespace trainyard::client {

absl::Status MetricsSource::ForEach(const Use& use) {
  const MetricsTotals before = totals_;  // what opening the source has counted
  const absl::Status status = ReadAll([&](const MetricsRecord& record) {
    if (record.is_eval) {
      ++totals_.evals;
      return use(record);
    }
    if (totals_.steps == 0) totals_.first_step = record.step;
    if (totals_.steps > 0) totals_.missing += record.step - totals_.last_step - 1;
    ++totals_.steps;
    totals_.last_step = record.step;
    return use(record);
  });
  if (!status.ok()) totals_ = before;
  return status;
}

std::vector<std::string> MetricsSource::Notes() const {
  std::vector<std::string> notes;
  const std::string why = WhyMissing();
  if (!why.empty() && totals_.steps > 0 && totals_.first_step > 1) {
    notes.push_back(absl::StrCat("steps 1 to ", totals_.first_step - 1, " are not here: ", why));
  }
  if (!why.empty() && totals_.missing > 0) {
    notes.push_back(absl::StrCat(Plural(totals_.missing, "step"), " between the first and the last ",
                                 totals_.missing == 1 ? "is" : "are", " not here: ", why));
  }
  if (totals_.replaced > 0) {
    notes.push_back(absl::StrCat(Plural(totals_.replaced, "record"),
                                 " of steps that a later generation repeated after a restart ",
                                 totals_.replaced == 1 ? "is" : "are", " left out"));
  }
  if (totals_.damaged > 0) {
    notes.push_back(absl::StrCat(Plural(totals_.damaged, "line"), " of ", place_, totals_.damaged == 1 ? " is" : " are",
                                 " neither a step nor an evaluation"));
  }
  return notes;
}

}  // namespace trainyard::client
