// Slots of hosts: how many are in use, by what, and how many are free.
#pragma once

#include <string>
#include <vector>

#include "coordinator/core/state.h"
#include "coordinator/policy/placement.h"

namespace trainyard {

// How the slots of a host are used. The host may be unreachable.
struct UsedSlots {
  uint64_t count = 0;
  uint64_t cpus = 0;      // of ranks with command.cpus
  std::string busy_with;  // "job ab12, job cd34"
};

// Whether the slots of the job's last group are kept for it because it starts again: its ranks end one after another,
// and no other job must get the slot of the first while the last still runs.
bool KeepsSlots(const Job& job);

UsedSlots UsedSlotsOf(const State& state, const Host& host);

// Returns the ranks of the job's last group that UsedSlotsOf counts, by host.
RanksByHost RanksWithSlots(const State& state, const Job& job);

// Returns every attached and reachable host in name order, with its free slots, and with a reason if it must not be
// used.
std::vector<HostSlots> FreeSlots(const State& state);

}  // namespace trainyard
