// Which unreachable hosts count as lost for a job (policy/host_loss), and what follows: their ranks count as ended, and
// their group ends.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// Checks the job's unreachable hosts. Called by the tick.
void CheckLostHosts(Turn& turn, Job& job);

// The host is lost for the job: its ranks there have ended.
void LoseHost(Turn& turn, Job& job, const HostName& name, DecisionRule rule, const std::string& reason);
// The same for every unreachable host of the job, because an operator requested it.
void LoseUnreachable(Turn& turn, Job& job, const std::string& why);

}  // namespace trainyard
