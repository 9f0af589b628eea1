// Decides when a running command that tolerates any number of ranks (command.min_ranks) is started again with more of
// them. Pure. A restart costs the work since the program's own last save, and hosts that join and leave again would
// repeat that cost, so the group grows only after the slots have been free for command.grow_after_s without
// interruption. When it is started again for another reason, it may also shrink or grow.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace trainyard {

struct GrowthFacts {
  uint32_t ranks = 0;                                 // of the running group
  uint32_t possible = 0;                              // ranks of a new group, if this one ended and freed its slots
  absl::Duration running_for = absl::ZeroDuration();  // since the group formed
  absl::Duration fit_for = absl::ZeroDuration();      // for how long more ranks have fitted without interruption
  absl::Duration patience = absl::ZeroDuration();     // command.grow_after_s
  bool others_wait = false;                           // another job waits for slots, and comes first
};

struct GrowthDecision {
  bool grow = false;
  std::string reason;  // of the restart
};

GrowthDecision DecideGrowth(const GrowthFacts& facts);

}  // namespace trainyard
