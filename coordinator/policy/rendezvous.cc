#include "coordinator/policy/rendezvous.h"

namespace trainyard {

std::vector<RankPlace> AssignRanks(const std::map<HostName, uint32_t>& ranks_by_host,
                                   const std::vector<HostName>& previous) {
  size_t world = 0;
  for (const auto& [host, count] : ranks_by_host) world += count;
  std::vector<RankPlace> places(world);
  std::map<HostName, uint32_t> left = ranks_by_host;
  for (size_t rank = 0; rank < world && rank < previous.size(); ++rank) {
    auto it = left.find(previous[rank]);
    if (it == left.end() || it->second == 0) continue;
    places[rank].host = previous[rank];
    --it->second;
  }
  auto next = left.begin();
  for (RankPlace& place : places) {
    if (!place.host.empty()) continue;
    while (next->second == 0) ++next;
    place.host = next->first;
    --next->second;
  }
  std::map<HostName, uint32_t> numbered;
  for (RankPlace& place : places) {
    place.local_rank = numbered[place.host]++;
    place.local_world_size = ranks_by_host.at(place.host);
  }
  return places;
}

}  // namespace trainyard
