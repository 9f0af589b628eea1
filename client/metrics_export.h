// Writes the steps and evaluations of a run (metrics_source.h) as CSV, as JSON, as an event file of TensorBoard, or as
// a curve. Memory does not grow with the length of the run.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/metrics_source.h"
#include "client/terminal.h"

namespace trainyard::client {

// A header, then a row for each record. A value that a record does not have is empty; a loss that is not finite is nan,
// inf or -inf.
std::string CsvHeader();
std::string CsvRow(const MetricsRecord& record);

// WriteCsv and WriteJsonLines write to standard output. Possible errors: those of reading; Aborted: standard output
// cannot be written.
absl::Status WriteCsv(MetricsSource& source);
// Writes the lines of metrics.jsonl, or those of `trainctl watch --json`.
absl::Status WriteJsonLines(MetricsSource& source);

struct EventFile {
  std::string path;
  bool was_replaced = false;  // the file of an earlier export
  bool has_others = false;    // event files of other programs, which TensorBoard merges with this one
};
// Writes `folder`/<name of the run>/events.out.tfevents.*, and makes these folders if they are missing. Possible
// errors: those of reading and writing; AlreadyExists: the folder has the events of another run with this name.
absl::StatusOr<EventFile> WriteEventFile(MetricsSource& source, const std::string& folder);

// The curve of the loss and a few figures below it.
absl::StatusOr<std::string> PlotText(MetricsSource& source, const TerminalTraits& traits);

}  // namespace trainyard::client
