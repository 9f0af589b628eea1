// Hosts and jobs for the tests of the queue's policies.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/queue.h"

namespace trainyard {

inline HostName H(const char* name) { return HostName(name); }

inline HostSlots MakeHost(const std::string& name, uint32_t slots, uint32_t free) {
  HostSlots host;
  host.name = HostName(name);
  host.slots = slots;
  host.free = free;
  host.cores = host.free_cores = 64;
  return host;
}

inline WaitingJob MakeWaiting(uint64_t index, uint32_t ranks, uint32_t priority = 50,
                              const std::string& pool = "default") {
  WaitingJob job;
  job.index = index;
  job.id = JobId(absl::StrCat("w", index));
  job.pool = pool;
  job.priority = priority;
  job.placement.ranks = ranks;
  return job;
}

inline RunningJob MakeRunning(const std::string& id, RanksByHost ranks, uint32_t priority,
                              const std::string& pool = "default") {
  RunningJob job;
  job.id = JobId(id);
  job.pool = pool;
  job.priority = priority;
  job.use = {.slots = CountRanks(ranks), .gpus = 0, .running = 1};
  job.ranks = std::move(ranks);
  job.began = absl::UnixEpoch();
  return job;
}

}  // namespace trainyard
