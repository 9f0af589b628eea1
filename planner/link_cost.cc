#include "planner/link_cost.h"

#include <algorithm>

namespace trainyard::planner {

RankGroup GroupOf(const Pool& pool, uint64_t size, uint64_t stride) {
  const uint64_t on_host = std::max<uint64_t>(pool.ranks_per_host / std::max<uint64_t>(stride, 1), 1);
  const uint64_t local = std::min(size, on_host);
  return {.local = static_cast<double>(local),
          .hosts = static_cast<double>((size + local - 1) / local),
          .sharers = static_cast<double>(std::min(std::max<uint64_t>(stride, 1), pool.ranks_per_host))};
}

double GatherSeconds(const Pool& pool, const RankGroup& group, double bytes) {
  // A ring of n ranks passes on n - 1 parts, one after another. Between hosts, the ranks of a host pass on the parts of
  // the host together, so that each byte of other hosts arrives once at the host.
  const double local = group.local - 1, remote = group.hosts - 1;
  double seconds = local * pool.inside.latency_s + local / group.local * bytes / pool.inside.bytes_per_s;
  if (remote > 0) {
    const double rate = pool.between.bytes_per_s / group.sharers;
    seconds += remote * pool.between.latency_s + remote / group.hosts * bytes / rate;
  }
  return seconds;
}

double AllReduceSeconds(const Pool& pool, const RankGroup& group, double bytes) {
  return 2 * GatherSeconds(pool, group, bytes);
}

double SendSeconds(const Pool& pool, double bytes, uint64_t sharers) {
  const Link& link = sharers == 0 ? pool.inside : pool.between;
  return link.latency_s + bytes * static_cast<double>(std::max<uint64_t>(sharers, 1)) / link.bytes_per_s;
}

}  // namespace trainyard::planner
