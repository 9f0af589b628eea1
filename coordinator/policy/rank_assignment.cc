#include "coordinator/policy/rank_assignment.h"

#include <map>

namespace trainyard {

std::vector<HostName> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous,
                                  uint32_t group) {
  size_t groups = 0;
  std::map<HostName, uint32_t> unassigned;  // in groups of ranks
  for (const auto& [host, count] : ranks_by_host) groups += unassigned[host] = count / group;
  std::vector<HostName> hosts(groups);
  for (size_t i = 0; i < groups && i * group < previous.size(); ++i) {
    auto it = unassigned.find(previous[i * group]);
    if (it == unassigned.end() || it->second == 0) continue;
    hosts[i] = it->first;
    --it->second;
  }
  auto next = ranks_by_host.begin();
  for (HostName& host_of_group : hosts) {
    if (!host_of_group.empty()) continue;
    while (unassigned[next->first] == 0) ++next;
    host_of_group = next->first;
    --unassigned[next->first];
  }
  std::vector<HostName> of_rank;
  for (const HostName& host : hosts) of_rank.insert(of_rank.end(), group, host);
  return of_rank;
}

}  // namespace trainyard
