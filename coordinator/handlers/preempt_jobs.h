// Preemption: a job ends as for a pause, with a save, and waits for slots again, because a job of a higher priority
// gets its slots. policy/victims chooses the jobs.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

// Ends these jobs for `job`, which waits for slots. The record of `job` names them until `job` starts or none of them
// is ending.
void PreemptJobs(Turn& turn, Job& job, const std::vector<JobId>& victims);
// Returns the jobs that end for this job and have not ended.
std::vector<JobId> EndingFor(const State& state, const Job& job);
// Forgets the jobs that ended for `job` once none of them is ending.
void ForgetVictims(Turn& turn, Job& job);

// Moves a preempted job whose ranks have all ended back into the queue.
void EndPreempted(Turn& turn, Job& job, std::string reason);
// Records that the save before a preemption has failed, so that the job is spared for a while. Returns what happened.
std::string SparePreempted(Turn& turn, Job& job, const std::string& why);

// Returns why the job must not be preempted now; empty: it may.
std::string ProtectionOf(const Turn& turn, const Job& job);

}  // namespace trainyard
