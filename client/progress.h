// A job's events shown as they come: for people as lines and a status line, for programs as JSON. The two sides of run
// and watch's output. Not thread-safe; one thread calls.
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

  // Once, first. `warnings` are those not shown before.
  virtual void Start(const v1::Job& job, const std::vector<std::string>& warnings) = 0;
  virtual void Event(const v1::Event& event) = 0;
  // A sentence of trainctl's own on standard error: what becomes of the connection.
  virtual void Aside(absl::string_view text) = 0;
  // Something of trainctl's own: level info, warning or error.
  virtual void Notice(absl::string_view level, absl::string_view text) = 0;
  // Once, last. `details` is the summary for people (see summary.h).
  virtual void Done(const v1::Job& job, const std::string& details, int exit_code) = 0;

  const RunStats& stats() const { return stats_; }

 protected:
  RunStats stats_;
};

// Both flush after every line. `stream` must outlive the result. `own_daemons`: a private cluster, whose waiting for
// its one host is no news.
std::unique_ptr<Progress> NewTextProgress(FILE* stream, const TerminalTraits& traits, bool own_daemons);
std::unique_ptr<Progress> NewJsonProgress(FILE* stream);

// "step 120/1200  loss 3.2145  lr 2.0e-03  12.3k tokens/s  ETA 1m02s".
std::string StepLine(const v1::StepReport& step, uint64_t steps_total, const RunStats& stats);

// Which steps get a line of their own when there is no status line: the first and the last, and those in between at the
// earlier of 5 s and a twentieth of the run, but no two within half a second. By the events' own time, so that a run
// that is watched later reads the same. Pure.
class LinePacer {
 public:
  bool Take(uint64_t step, uint64_t steps_total, absl::Time time);

 private:
  uint64_t taken_step_ = 0;
  absl::Time taken_at_ = absl::InfinitePast();
};

}  // namespace trainyard::client
