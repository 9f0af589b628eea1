// Chooses the jobs that end so that a waiting job can start. Pure.
//
// One job is chosen if there is one that suffices; otherwise jobs are added, those that free the most usable slots
// first, and those that turn out not to be needed are removed again. Among equals, jobs of the lowest priority come
// first, then those of the least cost, then the youngest. The cost is the unsaved work of all ranks and a minute of
// each rank for starting again. If the job needs hosts of one version, the choices for each version are compared: the
// fewest jobs, then the cheapest.
#pragma once

#include <vector>

#include "coordinator/policy/queue.h"

namespace trainyard {

struct VictimFacts {
  const QueueRules* rules = nullptr;
  const WaitingJob* job = nullptr;
  PoolUse use;                                  // of its pool
  absl::Span<const HostSlots> hosts = {};       // with the slots that are free once the ending jobs have ended
  std::vector<const RunningJob*> running = {};  // without those that a job ahead has chosen
};

// Returns the jobs to end; none if none must end, or if no set of them suffices.
std::vector<const RunningJob*> ChooseVictims(const VictimFacts& facts);
// Whether the rules permit that `job` preempts `other`; `other` may still be protected now.
bool MayPreempt(const QueueRules& rules, const WaitingJob& job, const RunningJob& other);

}  // namespace trainyard
