// How long operations between ranks take: a latency for each transfer, and bytes divided by the rate of the slowest
// link, for rings within each host and between hosts. Pure.
#pragma once

#include <cstdint>

#include "planner/machines.h"

namespace trainyard::planner {

// The ranks of one group as two levels: `local` of them on each host, on `hosts` hosts. Every host has `sharers` such
// groups, which use the link between hosts at the same time.
struct RankGroup {
  double local = 1;
  double hosts = 1;
  double sharers = 1;
};

// A group of `size` ranks whose numbers are `stride` apart. Ranks fill the hosts in order.
RankGroup GroupOf(const Pool& pool, uint64_t size, uint64_t stride);

// Seconds in which each rank gets all `bytes`, of which every rank has an equal part; equally long for the reverse,
// in which each rank gets the sum of its part.
double GatherSeconds(const Pool& pool, const RankGroup& group, double bytes);

// Seconds in which each rank gets the sum of `bytes` of all ranks.
double AllReduceSeconds(const Pool& pool, const RankGroup& group, double bytes);

// Seconds of a transfer of `bytes` from one rank to another. `sharers`: the ranks of a host that use the link between
// hosts at the same time; 0: both ranks are on one host.
double SendSeconds(const Pool& pool, double bytes, uint64_t sharers);

}  // namespace trainyard::planner
