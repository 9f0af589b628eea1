// A request to save now, by an operator or as a part of another request.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Records the request; rank 0 receives it with its desired state. Possible errors: FailedPrecondition: the job does not
// train, or its script has not reported that it saves on request. Unavailable: rank 0 does not report.
absl::Status RequestSave(Turn& turn, Job& job, const std::string& reason);

}  // namespace trainyard
