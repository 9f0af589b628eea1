#include "coordinator/policy/rendezvous.h"

#include <map>

namespace trainyard {

std::vector<RankPlace> AssignRanks(const RanksByHost& ranks_by_host, const std::vector<HostName>& previous) {
  size_t world = 0;
  for (const auto& [host, count] : ranks_by_host) world += count;
  std::vector<RankPlace> places(world);
  const std::map<HostName, uint32_t> counts(ranks_by_host.begin(), ranks_by_host.end());
  std::map<HostName, uint32_t> left = counts;
  for (size_t rank = 0; rank < world && rank < previous.size(); ++rank) {
    auto it = left.find(previous[rank]);
    if (it == left.end() || it->second == 0) continue;
    places[rank].host = previous[rank];
    --it->second;
  }
  auto next = ranks_by_host.begin();
  for (RankPlace& place : places) {
    if (!place.host.empty()) continue;
    while (left[next->first] == 0) ++next;
    place.host = next->first;
    --left[next->first];
  }
  std::map<HostName, uint32_t> numbered;
  for (RankPlace& place : places) {
    place.local_rank = numbered[place.host]++;
    place.local_world_size = counts.at(place.host);
  }
  return places;
}

}  // namespace trainyard
