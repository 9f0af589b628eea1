#include "coordinator/policy/rank_assignment.h"

#include <cstdint>
#include <map>

namespace trainyard {

std::vector<HostName> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous) {
  size_t world_size = 0;
  for (const auto& [host, count] : ranks_by_host) world_size += count;
  std::vector<HostName> hosts(world_size);
  std::map<HostName, uint32_t> unassigned(ranks_by_host.begin(), ranks_by_host.end());
  for (size_t rank = 0; rank < world_size && rank < previous.size(); ++rank) {
    auto it = unassigned.find(previous[rank]);
    if (it == unassigned.end() || it->second == 0) continue;
    hosts[rank] = previous[rank];
    --it->second;
  }
  auto next = ranks_by_host.begin();
  for (HostName& host_of_rank : hosts) {
    if (!host_of_rank.empty()) continue;
    while (unassigned[next->first] == 0) ++next;
    host_of_rank = next->first;
    --unassigned[next->first];
  }
  return hosts;
}

}  // namespace trainyard
