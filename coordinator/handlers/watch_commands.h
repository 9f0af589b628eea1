// Decisions about the running program of a command that depend on time alone: its time limit, and growth to more
// ranks.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Ends a job whose command.time_limit_s is used up.
void LimitTime(Turn& turn, Job& job);
// Restarts an elastic command with more ranks once policy/elastic decides so. Called only about once a second,
// because it looks at all slots.
void GrowCommand(Turn& turn, Job& job);

}  // namespace trainyard
