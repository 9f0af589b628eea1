// Shows a job's events as they arrive: as text with a status line, or as JSON lines. `run` and `watch` have these two
// output formats. Not thread-safe; JobSession synchronizes its calls from several threads.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/run_stats.h"
#include "client/terminal.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

class Progress {
 public:
  virtual ~Progress() = default;

  // Call once, first. `warnings` are those that were not shown before.
  virtual void Start(const v1::Job& job, const std::vector<std::string>& warnings) = 0;
  virtual void Event(const v1::Event& event) = 0;
  // Prints a message of trainctl itself, for example about a lost connection, to standard error.
  virtual void Message(absl::string_view text) = 0;
  // Shows a notice of trainctl itself; `level`: info, warning or error.
  virtual void Notice(absl::string_view level, absl::string_view text) = 0;
  // Shows a line that a rank of a command has written.
  virtual void Output(const v1::LogLine& line) = 0;
  // Call once, last. `details` is the summary text (see summary.h).
  virtual void Done(const v1::Job& job, const std::string& details, int exit_code) = 0;

  const RunStats& stats() const { return stats_; }

 protected:
  RunStats stats_;
};

// Both results flush `stream` after every line. `stream` must outlive them. `own_daemons`: for a private cluster, the
// wait for its only host is not shown.
std::unique_ptr<Progress> NewTextProgress(FILE* stream, const TerminalTraits& traits, bool own_daemons);
std::unique_ptr<Progress> NewJsonProgress(FILE* stream);

// "step 120/1200  loss 3.2145  lr 2.0e-03  12.3k tokens/s  ETA 1m02s".
// If `steps_total` is 0, the total is unknown.
std::string StepLine(const v1::StepReport& step, uint64_t steps_total, const RunStats& stats);

// Decides which steps are printed when there is no status line: the first and the last, and others every 5 s or every
// twentieth of the run, whichever comes first, but at most one per half second. Uses the events' time, so that a run
// watched later prints the same lines. Pure.
class LinePacer {
 public:
  // Returns whether to print this step, and remembers it if so.
  bool ShouldPrint(uint64_t step, uint64_t steps_total, absl::Time time);

 private:
  uint64_t printed_step_ = 0;
  absl::Time printed_at_ = absl::InfinitePast();
};

}  // namespace trainyard::client
