// What a network that is slow, or loses packets, does to a job that loses no rank by it: its ranks wait for one another
// far longer than they did, while they compute as fast as before; and what a host sends arrives late. Neither ends
// anything: both are told, so that nobody need guess why a job became slow. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

// How long one rank waits for the others in a step, over windows of about two seconds, from the totals it tells.
class WaitTrend {
 public:
  // Totals since the trainer began, as told at `at`.
  void Add(absl::Time at, double compute_s, double wait_s, uint64_t steps);

  // Of the newest window: the waiting is many times what it was, the computing is not.
  bool is_slow() const { return slow_; }
  double wait_s() const { return wait_s_; }              // a step, in the newest window
  double usual_wait_s() const { return usual_wait_s_; }  // in those before that were not slow
  absl::Time judged_at() const { return judged_at_; }

 private:
  struct Totals {
    absl::Time at;
    double compute_s;
    double wait_s;
    uint64_t steps;
  };
  void Judge(double compute_s, double wait_s);

  std::optional<Totals> first_;  // of the window that is open
  bool known_ = false;           // the usual times
  double usual_wait_s_ = 0;
  double usual_compute_s_ = 0;
  double wait_s_ = 0;
  bool slow_ = false;
  absl::Time judged_at_ = absl::InfinitePast();
};

struct WaitingRank {
  absl::string_view host;
  const WaitTrend* trend;
};

// "the network between hosts a, b is slow or loses packets: a step waits 152 ms for other ranks, 4.1 ms before"; empty:
// it is not, or it cannot be told. All ranks of the group that have not ended must be slow, and on several hosts: one
// that waits less than the others is what they wait for.
std::string JudgeWaiting(absl::Time now, const std::vector<WaitingRank>& ranks);
// None of them waits longer than usual any more.
bool WaitsAsUsual(absl::Time now, const std::vector<WaitingRank>& ranks);

// Whether what a host sends arrives later than it did, from the clock in its heartbeats less ours: the largest
// difference lately is that of the quickest way, and what is less was on its way for longer.
class ArrivalTrend {
 public:
  enum class Change { kNone, kLate, kPunctual };
  Change Add(absl::Time at, absl::Duration clock_offset);
  // Of a message that may have been late for reasons of its own: counts as far as it was quick.
  void Expect(absl::Time at, absl::Duration clock_offset);
  absl::Duration late_by() const { return late_by_; }  // the newest

 private:
  absl::Duration best_ = -absl::InfiniteDuration(), best_before_ = -absl::InfiniteDuration();
  absl::Time since_ = absl::InfinitePast();  // of best_
  absl::Duration late_by_;
  int in_a_row_ = 0;
  bool late_ = false;
};

}  // namespace trainyard
