// Chooses the hosts of a job: all ranks get a slot or none does. Pure; called by the core for each waiting job, oldest
// first, and a job that does not fit lets a later one that does go ahead, until it has waited for kOvertakeLimit: from
// then on the slots it could use are kept for it.
//
//   PlacementDecision decision = DecidePlacement({.ranks = 4, .hosts = hosts, .previous = {}});
//   if (!decision.ranks_by_host) job.reason = decision.reason;
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace trainyard {

// After a job has waited so long, later jobs no longer take slots that it could use.
inline constexpr absl::Duration kOvertakeLimit = absl::Minutes(10);

struct HostSlots {
  HostName name;
  uint32_t slots = 0;
  uint32_t free = 0;
  uint32_t gpus = 0;
  std::string switch_name;  // labels of the host; empty: it has none
  std::string rack;
  std::string barred;     // why nothing new is placed there: "cordoned: disk"; empty: it may be used
  std::string busy_with;  // "job ab12, job cd34"; what its used slots are used for
};

// Hosts near each other are next to each other: by switch, rack and name.
void OrderByPlace(std::vector<HostSlots>& hosts);

struct PlacementFacts {
  uint32_t ranks = 0;
  bool needs_gpu = false;                  // each rank needs one; a host has as many slots for them as GPUs at most
  absl::Span<const HostSlots> hosts = {};  // reachable ones, as OrderByPlace leaves them
  std::vector<HostName> previous = {};     // by rank, of the generation before; empty: there was none
  std::set<std::string> only = {};         // resources.hosts; empty: any
  std::set<std::string> excluded = {};     // resources.exclude_hosts
  // Hosts that could not run this job lately, and why: "the checkpoint of step 40 is not in /runs/a".
  std::map<std::string, std::string> avoided = {};
  bool one_a_host = false;  // a probe of hosts: each of `only` gets one rank
};

// How many ranks each chosen host gets, hosts in their order. No count is 0.
using RanksByHost = std::vector<std::pair<HostName, uint32_t>>;

struct PlacementDecision {
  std::optional<RanksByHost> ranks_by_host;  // none: the job waits
  // "4 ranks on w1 (2), w2 (2)"; "waits for slots: 4 ranks asked, 0 of 2 slots free on 1 host (w1); busy: w1 (job
  // ab12); not used: w2 (cordoned: disk)".
  std::string reason;
};

// A host that had ranks of the job keeps as many of them as it has free slots for; what is left goes to the hosts in
// their order, as many a host as it has free slots.
PlacementDecision DecidePlacement(const PlacementFacts& facts);

// Why this job may not use the host; empty: it may.
std::string BarredFor(const PlacementFacts& facts, const HostSlots& host);
// Whether the job would fit if every slot it may use were free: then it is worth keeping slots for it.
bool CouldFit(const PlacementFacts& facts);

}  // namespace trainyard
