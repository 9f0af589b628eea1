// Numbers the ranks of a generation: which rank runs on which host. Pure. A rank stays on its host from one generation
// to the next as long as the host is still chosen, so that what lies on that host (page cache, snapshots) is found
// again.
#pragma once

#include <vector>

#include "common/ids.h"
#include "coordinator/policy/placement.h"

namespace trainyard {

// The host of each rank. `previous` is the host of each rank in the generation before; empty: ranks are numbered host
// by host in the order of `ranks_by_host`. REQUIRES: the counts are not 0, and `previous` is empty or as long as their
// sum.
std::vector<HostName> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous);

}  // namespace trainyard
