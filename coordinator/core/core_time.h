// The times that come with an event. The core decides by `now` alone; a jump of the wall clock changes no decision.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace trainyard {

struct CoreTime {
  // For callers that control the clock: all three times are the same.
  CoreTime(absl::Time all) : now(all), steady(all), wall(all) {}  // NOLINT(google-explicit-constructor)
  CoreTime(absl::Time now, absl::Time steady, absl::Time wall) : now(now), steady(steady), wall(wall) {}

  absl::Time now;     // monotonic; does not advance while the coordinator was stopped (see CoreClock)
  absl::Time steady;  // monotonic; advances also while the coordinator was stopped; for the ledger of goodput
  absl::Time wall;    // for the times that users read
  // Whether the store accepted no records since the previous round of the loop, so that the coordinator stood still.
  bool held_up = false;
};

// Derives the core's time from the machine's. A coordinator that was stopped (SIGSTOP), suspended or blocked by its
// disk received nothing meanwhile, which proves nothing about the hosts. So if two rounds of the loop are more than
// kAwayAfter apart, the core's time advances by kAwayStep only, and every lease, stall limit and grace period keeps its
// remaining time. Used on the loop's thread.
class CoreClock {
 public:
  static constexpr absl::Duration kAwayAfter = absl::Milliseconds(500);
  static constexpr absl::Duration kAwayStep = absl::Milliseconds(100);

  // `steady` is the time of a monotonic clock.
  CoreTime Advance(absl::Time steady, absl::Time wall) {
    if (last_ != absl::InfinitePast() && steady - last_ > kAwayAfter) away_ += steady - last_ - kAwayStep;
    last_ = std::max(last_, steady);
    CoreTime time(last_ - away_, last_, wall);
    time.held_up = std::exchange(held_up_, false);
    return time;
  }
  // The time until the next call of Advance, if it is a gap, is attributed to the store (CoreTime::held_up).
  void HoldUp() { held_up_ = true; }
  // Converts the time of a contact to the core's time. The result is at most `now`.
  absl::Time FromSteady(absl::Time steady) const { return std::min(steady, last_) - away_; }

 private:
  absl::Time last_ = absl::InfinitePast();
  absl::Duration away_;  // how far the core's time is behind the steady clock
  bool held_up_ = false;
};

}  // namespace trainyard
