// What one trainer reports while it trains. Reports never block a step and may be lost, with one exception: rank 0's
// steps and evaluations are told once each, so the last 4,096 are kept and sent again on every new stream (the
// coordinator drops what it has told already). Of other ranks the newest report is enough, about twice a second.
//
// The first report after a pause goes at once, so that a first step is seen when it is made; those that follow are
// gathered, so that a job of a thousand steps a second does not cost a message each.
//
// Part of the daemon's core: no thread, lock or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

class ReportBuffer {
 public:
  void Add(const v1::RankReport& report, absl::Time now);

  // What the daemon sees of the process; goes with every report from here on.
  void SetProcess(std::string state, double cpu_s);
  // The trainer says nothing (`silent`), or cannot (its link is not open): what it said last is told once more, with
  // the process as it is now.
  void Nudge(const v1::TrainerKey& key, bool silent, absl::Time now);

  // When the next message is due; InfiniteFuture when there is nothing to say.
  absl::Time due() const;

  // All that was not yet sent on this stream, oldest first; steps that were dropped are told in one report. At most
  // limits::kReportsPerMessage steps a report.
  std::vector<v1::RankReport> Take(absl::Time now);

  // There is a new stream: all that is kept is to be sent.
  void Rewind();

 private:
  template <typename Report>
  struct Kept {
    std::deque<Report> items;
    size_t unsent = 0;       // index of the first item not sent on this stream
    uint64_t last_step = 0;  // a trainer whose link broke says some twice

    // Returns how many items fell out before they were ever sent.
    uint64_t Add(const Report& report);
  };

  v1::RankReport newest_;  // without steps and evaluations; its phase times are those not told yet
  std::string process_state_;
  double process_cpu_s_ = 0;
  absl::Time newest_at_;
  bool has_news_ = false;
  absl::Time sent_at_ = absl::InfinitePast();
  Kept<v1::StepReport> steps_;
  Kept<v1::EvalReport> evals_;
  uint64_t trainer_dropped_ = 0;     // the trainer's own count, of its whole life
  uint64_t unreported_dropped_ = 0;  // by the trainer or here, since a report last told of some
};

}  // namespace trainyard::agent
