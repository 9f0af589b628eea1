// What the jobs of each pool use and wait for, for GetQueue and for metrics. A pool is a namespace, or the namespaces
// that share the limits of the configured entry "*".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "coordinator/policy/queue.h"

namespace trainyard {

// What one job uses; nothing if it is neither placed nor about to start again.
PoolUse UseOf(const State& state, const Job& job);
// What the jobs of each pool use.
std::map<std::string, PoolUse> CountUse(const State& state);

struct PoolTotals {
  std::string pool;
  PoolUse use;
  uint64_t queued = 0;
  absl::Duration oldest_wait;
  uint64_t preemptions = 0;  // of its jobs, since the start of this coordinator
};

// The pools that are configured or have unfinished jobs, by name.
std::vector<PoolTotals> CountPools(const State& state, absl::Time now);

}  // namespace trainyard
