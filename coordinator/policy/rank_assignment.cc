#include "coordinator/policy/rank_assignment.h"

#include <cstdint>
#include <map>

namespace trainyard {

std::vector<HostName> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous) {
  size_t world = 0;
  for (const auto& [host, count] : ranks_by_host) world += count;
  std::vector<HostName> places(world);
  std::map<HostName, uint32_t> left(ranks_by_host.begin(), ranks_by_host.end());
  for (size_t rank = 0; rank < world && rank < previous.size(); ++rank) {
    auto it = left.find(previous[rank]);
    if (it == left.end() || it->second == 0) continue;
    places[rank] = previous[rank];
    --it->second;
  }
  auto next = ranks_by_host.begin();
  for (HostName& place : places) {
    if (!place.empty()) continue;
    while (left[next->first] == 0) ++next;
    place = next->first;
    --left[next->first];
  }
  return places;
}

}  // namespace trainyard
