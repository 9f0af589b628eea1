// Numbers the ranks of a generation: decides which rank runs on which host. Pure. A rank stays on its host from one
// generation to the next as long as the host is still chosen, so that it can use what is stored on that host (page
// cache, snapshots).
#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"
#include "coordinator/policy/placement.h"

namespace trainyard {

// Returns the host of each rank. `previous` holds the host of each rank in the previous generation; if it is empty,
// ranks are numbered host by host in the order of `ranks_by_host`. Each `group` consecutive ranks get the same host.
// REQUIRES: the counts are not 0, and multiples of `group`. `previous` may have another number of ranks.
std::vector<HostName> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous,
                                  uint32_t group = 1);

}  // namespace trainyard
