// The times that come with an event. The core decides by `now` alone; a step of the wall clock changes no decision.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace trainyard {

struct CoreTime {
  // All three the same, for those who hold the clock.
  CoreTime(absl::Time all) : now(all), steady(all), wall(all) {}  // NOLINT(google-explicit-constructor)
  CoreTime(absl::Time now, absl::Time steady, absl::Time wall) : now(now), steady(steady), wall(wall) {}

  absl::Time now;     // goes forward only, and stands still while the coordinator itself was away
  absl::Time steady;  // goes forward only, also while it was away: for the ledger of goodput
  absl::Time wall;    // stamps what people read
  // The newest time away was spent on a store that took nothing.
  bool held_up = false;
};

// Makes the core's time of the machine's. A coordinator that was stopped (SIGSTOP), suspended or held up by its disk
// heard of nobody meanwhile, which says nothing of them: between two rounds of the loop more than kAwayAfter apart, the
// core's time moves by kAwayStep only, so that every lease, stall and grace is as it was. Used on the loop's thread.
class CoreClock {
 public:
  static constexpr absl::Duration kAwayAfter = absl::Milliseconds(500);
  static constexpr absl::Duration kAwayStep = absl::Milliseconds(100);

  // `steady` is a clock that is never set.
  CoreTime Advance(absl::Time steady, absl::Time wall) {
    if (last_ != absl::InfinitePast() && steady - last_ > kAwayAfter) away_ += steady - last_ - kAwayStep;
    last_ = std::max(last_, steady);
    CoreTime time(last_ - away_, last_, wall);
    time.held_up = std::exchange(held_up_, false);
    return time;
  }
  // What passes from now until the next round was spent on the store.
  void HoldUp() { held_up_ = true; }
  // When something that was heard of at `steady` was heard of in the core's time; not after `now`.
  absl::Time FromSteady(absl::Time steady) const { return std::min(steady, last_) - away_; }

 private:
  absl::Time last_ = absl::InfinitePast();
  absl::Duration away_;
  bool held_up_ = false;
};

}  // namespace trainyard
