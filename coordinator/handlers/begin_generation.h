// Begins the next generation of a job: everything that belongs to the old one is forgotten here, and nowhere else.
#pragma once

#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

// Numbers the generation, gives each rank its host (`places`, by rank), and resets Job::current and the parts of the
// record that belong to one generation. A generation after a failure that the job pays for takes one of its restarts.
// REQUIRES: everything of the old generation has ended; the hosts are known.
void BeginGeneration(Turn& turn, Job& job, const std::vector<HostName>& places);

}  // namespace trainyard
