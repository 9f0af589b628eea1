// Groups that make no progress: gathers what ranks and their daemons reported (rank_progress.h), calls policy/hang and
// carries out its decision.
#pragma once

#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Checks whether the job's group hangs, and carries out the decision. Called by the tick.
void CheckHang(Turn& turn, Job& job);

// A daemon has examined the process of a rank.
void RecordExamination(Turn& turn, Job& job, Rank& rank, const v1::Examination& examination);

// Whether the stack of a rank that hung is still awaited: its group is not killed before it has arrived, or kStackWait
// has passed.
bool AwaitsStacks(const Job& job);

// No stall of this job began before now.
void RestartStallTimer(Turn& turn, Job& job);

// How long a rank may be in this phase; infinite if nothing was learned about it yet.
absl::Duration LearnedPhaseLimit(const Job& job, absl::string_view phase);

}  // namespace trainyard
