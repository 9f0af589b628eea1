// Cancels a job on request.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// Cancels the job without waiting for a save: its ranks are asked to stop, and its state is CANCELLED when they have
// ended. A job that is already being ended is left as it is. REQUIRES: the job has not ended.
void Cancel(Turn& turn, Job& job, const std::string& reason);

}  // namespace trainyard
