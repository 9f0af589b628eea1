// Cancels a job on request.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Cancels the job without waiting for a save: its ranks are asked to stop, and its state is CANCELLED when they have
// ended. A job that is already being ended is left as it is. REQUIRES: the job has not ended.
void Cancel(Turn& turn, Job& job, const std::string& reason);
// Withdraws a cancellation that waits until the script of the job has saved, because the job was paused or resumed
// since (`what`); nothing else would show that the request still holds. The caller saves the job's record.
void ForgetCancelWhenSaved(Turn& turn, Job& job, absl::string_view what);

}  // namespace trainyard
