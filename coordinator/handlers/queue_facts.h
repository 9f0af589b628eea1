// Collects from the state the facts from which policy/queue decides.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "coordinator/core/turn.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/queue.h"

namespace trainyard {

// The facts and the hosts that they refer to.
struct QueueView {
  std::vector<HostSlots> hosts;
  QueueFacts facts;
};

// `indexes`: the waiting jobs, by submission. Jobs that are held are left out.
QueueView MakeQueueView(const Turn& turn, const std::set<uint64_t>& indexes);

// Whether every known host has had the time to attach to this coordinator.
bool HostsHadTime(const Turn& turn);

// Returns all hosts. Those that cannot be reached have only a name and `unusable`, for the reason why a job waits.
std::vector<HostSlots> AllHosts(const State& state);
// Returns the facts, which refer to `hosts`.
PlacementFacts MakePlacementFacts(absl::Time now, const Job& job, const std::vector<HostSlots>& hosts);
std::vector<HostName> HostsOfRanks(const Job& job);
// The number of consecutive ranks that share a host.
uint32_t RankGroup(const Job& job);
// Whether the ranks are trainers of Trainyard that train together, which are not tested together with those of another
// version. A probe measures hosts, also those of different versions.
bool NeedsOneVersion(const Job& job);

// The facts about one job that waits, or that would have to wait if its group ended now.
WaitingJob MakeWaitingJob(const Turn& turn, const Job& job, const std::vector<HostSlots>& hosts);

}  // namespace trainyard
