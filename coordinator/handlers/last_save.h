// The save of a job's last step: if it fails the ranks keep the state and try again, and the job succeeds only once a
// save was made. Published once per error, since there are many tries; the history itself records, also for the next
// coordinator, that tries are under way.
#pragma once

#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Whether that save has failed and the ranks of this generation are trying it again.
bool LastSaveIsRetried(const Job& job);
void PublishLastSaveFailure(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed);
void PublishLastSaveSuccess(Turn& turn, Job& job);

// Whether the job's history has this notice for its current generation.
bool WasPublished(const Job& job, DecisionRule rule, absl::string_view text);

}  // namespace trainyard
