// Detects groups that make no progress: gathers the reports of ranks and daemons (rank_progress.h), calls policy/hang
// and carries out its decision. Used on the core's thread only.
#pragma once

#include "common/phase.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Checks whether the job's group hangs, and carries out the decision. Called by the tick.
void CheckHang(Turn& turn, Job& job);

// Stores what a daemon found when it examined the process of a rank. Ignores answers to outdated requests.
void RecordExamination(Turn& turn, Job& job, Rank& rank, const v1::Examination& examination);

// Returns whether the stack of a rank that hung was requested and has not arrived. Its group is killed when the stack
// has arrived or kStackWait has passed.
bool AwaitsStacks(const Job& job);

// Restarts the timer of a stall: time before now does not count.
void RestartStallTimer(Turn& turn, Job& job);

// Returns how long a rank may stay in this phase; infinite if the duration of the phase was not learned yet.
absl::Duration LearnedPhaseLimit(const Job& job, const ReportedPhase& phase);

}  // namespace trainyard
