// Begins the next generation of a job: everything that belongs to the old one is forgotten here, and nowhere else.
#pragma once

#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

// Numbers the generation, gives each rank its host (`hosts`, by rank), and resets Job::current and the parts of the
// record that belong to one generation. Uses up one of the job's restarts if the old generation has failed and
// policy/recovery counts such a failure (CountsAsRestart). REQUIRES: all trainers of the old generation have ended;
// State::hosts contains the hosts.
void BeginGeneration(Turn& turn, Job& job, const std::vector<HostName>& hosts);

}  // namespace trainyard
