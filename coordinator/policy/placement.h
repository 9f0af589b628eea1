// Chooses the hosts of a job: all ranks get a slot or none does. Pure; called by the core for each waiting job, oldest
// first, and a job that does not fit lets a later one that does go ahead.
//
//   PlacementDecision decision = DecidePlacement({.ranks = 4, .hosts = hosts, .previous = {}});
//   if (!decision.ranks_by_host) job.reason = decision.reason;
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"

namespace trainyard {

struct HostSlots {
  HostName name;
  uint32_t slots = 0;
  uint32_t free = 0;
  uint32_t gpus = 0;
};

struct PlacementFacts {
  uint32_t ranks = 0;
  bool needs_gpu = false;               // each rank needs one; a host has as many slots for them as GPUs at most
  absl::Span<const HostSlots> hosts;    // reachable ones, in name order
  std::vector<HostName> previous;       // by rank, of the generation before; empty: there was none
};

struct PlacementDecision {
  // How many ranks each chosen host gets; none: the job waits.
  std::optional<std::map<HostName, uint32_t>> ranks_by_host;
  // "4 ranks on w1 (2), w2 (2)"; "waits for slots: 4 ranks asked, 2 of 2 slots free on 1 host (w1)".
  std::string reason;
};

// A host that had ranks of the job keeps as many of them as it has free slots for; what is left goes to the hosts in
// name order, as many a host as it has free slots.
PlacementDecision DecidePlacement(const PlacementFacts& facts);

}  // namespace trainyard
