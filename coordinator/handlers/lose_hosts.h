// Decides which unreachable hosts count as lost for a job (policy/host_loss): their ranks count as ended, and the group
// ends.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// Checks the job's unreachable hosts. Called by the tick.
void CheckLostHosts(Turn& turn, Job& job);

// Counts the host as lost for the job: its ranks there count as ended, and the generation has failed.
void LoseHost(Turn& turn, Job& job, const HostName& name, DecisionRule rule, const std::string& reason);
// Counts every unreachable host of the job as lost, because an operator requested it.
void LoseUnreachable(Turn& turn, Job& job, const std::string& why);

}  // namespace trainyard
