// The steps and evaluations of a run, once each and in order: from metrics.jsonl in its run folder, or from the reports
// that a coordinator has in memory. If steps were repeated after a restart, those of the later generation count.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<MetricsSource> source, OpenMetricsFile(path, "my-run"));
//   RETURN_IF_ERROR(source->ForEach([](const MetricsRecord& record) { ...; return true; }));
//   for (const std::string& note : source->Notes()) ...
//
// A file is read twice in blocks, so that memory does not grow with the length of a run; the two passes must see the
// same lines. Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/metrics_record.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Counts over all records, complete once all records have been read.
struct MetricsTotals {
  uint64_t steps = 0, evals = 0;
  uint64_t first_step = 0, last_step = 0;
  uint64_t missing = 0;   // steps between first_step and last_step without a record
  uint64_t replaced = 0;  // records that are left out: a later generation repeated their steps
  uint64_t damaged = 0;   // lines that are neither steps nor evaluations
};

class MetricsSource {
 public:
  // Returns false to stop.
  using Use = std::function<bool(const MetricsRecord& record)>;

  explicit MetricsSource(std::string name, std::string place) : name_(std::move(name)), place_(std::move(place)) {}
  virtual ~MetricsSource() = default;

  // Calls `use` for every record, in order, each with a time. Possible errors: those of reading; Aborted: the file has
  // changed meanwhile.
  absl::Status ForEach(const Use& use);

  const std::string& name() const { return name_; }    // of the run or job
  const std::string& place() const { return place_; }  // where the records are, for people
  const MetricsTotals& totals() const { return totals_; }
  // Whether the times of records are the start of the run plus durations, because no times were recorded.
  bool computes_times() const { return computes_times_; }
  // What a reader of the records should know, as sentences. Call after ForEach.
  std::vector<std::string> Notes() const;
  // OK, or Unavailable: the last records of the run are missing. Call after ForEach.
  virtual absl::Status Completeness() const { return absl::OkStatus(); }

 protected:
  virtual absl::Status ReadAll(const Use& use) = 0;
  // Why steps are missing; empty: the run does not report every step.
  virtual std::string WhyMissing() const = 0;

  MetricsTotals totals_;
  bool computes_times_ = false;

 private:
  const std::string name_, place_;
};

// `name`: that of the run. Possible errors: NotFound; FailedPrecondition: it is not a regular file; ResourceExhausted:
// its step numbers decrease more often than those of any run.
absl::StatusOr<std::unique_ptr<MetricsSource>> OpenMetricsFile(const std::string& path, const std::string& name);

// Reads the reports of `job` from the coordinator: up to its last step, if it has not ended. `folder_owner`: if another
// job was the last to use the folder that has the run folder's path on this machine, that job; otherwise empty.
// Possible errors: those of Watch.
absl::StatusOr<std::unique_ptr<MetricsSource>> ReadReportsOfJob(Connection& connection, const v1::Job& job,
                                                                const std::string& folder_owner);

}  // namespace trainyard::client
