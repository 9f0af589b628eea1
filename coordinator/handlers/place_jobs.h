// Places waiting jobs in the order of the queue: policy/queue decides which start, policy/placement chooses the hosts,
// policy/rank_assignment numbers the ranks, the next generation is recorded, and the hosts receive it with their
// desired states.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

// Places those of the waiting jobs (by submit index) that fit.
void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes);

// The number of ranks that the job would get if its group ended now; 0: it would wait.
uint32_t RanksIfStartedAgain(const Turn& turn, const Job& job);

// Whether a job in the queue would fit if all slots of the reachable hosts were free, and its quota permits it.
bool AnyWaitingJobCouldFit(const Turn& turn);

// Whether the job would fit if all slots of the reachable hosts were free, without these hosts and the avoided ones.
// The versions of the hosts do not matter: a job must not fail for ever because an upgrade is under way.
bool FitsWithout(absl::Time now, const State& state, const Job& job, const std::vector<std::string>& without);

}  // namespace trainyard
