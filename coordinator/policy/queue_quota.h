// How many ranks of a job the limits of its namespace permit. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/policy/queue.h"

namespace trainyard {

struct QuotaDecision {
  uint32_t ranks = 0;  // at most this many may start; 0: none
  std::string reason;  // why none may
  bool never = false;  // none may start even if the namespace uses nothing
};

// Takes `part` out of the use of a pool, which is a set of namespaces that share limits (queue_rules.h).
void RemoveUse(PoolUse& use, const PoolUse& part);

// Counts that the job starts with this number of ranks. They replace those that a job that continues had.
void AddStart(PoolUse& use, const WaitingJob& job, uint64_t ranks);

// `use` is the use of the job's pool, including the jobs that this pass has started. A job that continues may always
// have the ranks that it had.
QuotaDecision DecideQuota(const QueueRules& rules, const PoolUse& use, const WaitingJob& job);

}  // namespace trainyard
