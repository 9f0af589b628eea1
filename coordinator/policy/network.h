// Detects a network that is slow or loses packets, by two effects: the ranks of a job wait for one another much longer
// than before, although they compute as fast as before; the messages of a host arrive late. Neither effect ends a job;
// both are reported, so that users know why a job became slow. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

// How long one rank waits for the others per step, in windows of about two seconds, from the totals that it reports.
class WaitTrend {
 public:
  // Totals since the trainer started, as reported at `at`.
  void Add(absl::Time at, double compute_s, double wait_s, uint64_t steps);

  // For the newest window: the waiting time is more than three times the usual one plus 10 ms, and the computing time
  // has not even doubled.
  bool is_slow() const { return slow_; }
  double wait_s() const { return wait_s_; }              // per step, in the newest window
  double usual_wait_s() const { return usual_wait_s_; }  // in the earlier windows that were not slow
  absl::Time checked_at() const { return checked_at_; }

 private:
  struct Totals {
    absl::Time at;
    double compute_s;
    double wait_s;
    uint64_t steps;
  };
  void UpdateUsual(double compute_s, double wait_s);

  std::optional<Totals> first_;  // of the current window
  bool known_ = false;           // the usual times are known
  double usual_wait_s_ = 0;
  double usual_compute_s_ = 0;
  double wait_s_ = 0;
  bool slow_ = false;
  absl::Time checked_at_ = absl::InfinitePast();
};

struct WaitingRank {
  absl::string_view host;
  const WaitTrend* trend;
};

// "the network between hosts a, b is slow or loses packets: a step waits 152 ms for the other ranks (before: 4.1 ms),
// ..."; empty: the network is not slow, or this cannot be determined. All running ranks of the group must be slow, on
// several hosts: a rank that waits less than the others is the one they wait for.
std::string FindSlowNetwork(absl::Time now, const std::vector<WaitingRank>& ranks);
// Whether no rank waits longer than usual any more.
bool WaitsAsUsual(absl::Time now, const std::vector<WaitingRank>& ranks);

// Detects that a host's messages arrive later than before, from the difference between the clock in its heartbeats and
// ours: the largest recent difference belongs to the fastest message, and a smaller one means a delay.
class ArrivalTrend {
 public:
  enum class Change { kNone, kLate, kPunctual };
  Change Add(absl::Time at, absl::Duration clock_offset);
  // Adds a message of another kind, whose delay may differ: it counts only if it was faster than the others.
  void AddIfFast(absl::Time at, absl::Duration clock_offset);
  absl::Duration late_by() const { return late_by_; }  // of the newest message

 private:
  // The largest differences of the current interval and of the one before.
  absl::Duration best_ = -absl::InfiniteDuration(), best_before_ = -absl::InfiniteDuration();
  absl::Time since_ = absl::InfinitePast();  // when the current interval began
  absl::Duration late_by_;
  int in_a_row_ = 0;
  bool late_ = false;
};

}  // namespace trainyard
