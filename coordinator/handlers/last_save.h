// The save of a job's last step: if it fails, the ranks keep the state and try again, and the job succeeds only once
// the step is saved. A failure is published once per error, since there are many tries; the history records, also for
// the next coordinator process, that the save is being tried again.
#pragma once

#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Whether the save of the last step has failed and the ranks of this generation are trying it again.
bool LastSaveIsRetried(const Job& job);
void PublishLastSaveFailure(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed);
void PublishLastSaveSuccess(Turn& turn, Job& job);

// Whether the job's history has this notice for its current generation.
bool WasPublished(const Job& job, DecisionRule rule, absl::string_view text);

}  // namespace trainyard
