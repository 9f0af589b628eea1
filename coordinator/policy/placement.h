// Chooses the hosts of a job: either all ranks get a slot (at least `min_ranks` of them, if that is set) or none does.
// Pure; policy/queue calls it for each waiting job, in the order of the queue.
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

struct HostSlots {
  HostName name;
  uint32_t slots = 0;
  uint32_t free = 0;
  uint32_t over = 0;  // in use beyond `slots`: the daemon came back with fewer, or a trainer could not be ended
  uint32_t gpus = 0;
  uint32_t cores = 0;
  uint32_t free_cores = 0;  // cores that no rank with command.cpus uses
  std::string switch_name;  // labels of the host; empty: none
  std::string rack;
  std::string version;    // of its daemon, and so of the trainers that it starts; empty: not known
  std::string unusable;   // why no new job may be placed there: "cordoned: disk"; empty: it may be used
  std::string busy_with;  // "job ab12, job cd34": the users of its used slots
};

// Sorts hosts by switch, rack and name, so that nearby hosts are next to each other.
void SortByTopology(std::vector<HostSlots>& hosts);

struct PlacementFacts {
  uint32_t ranks = 0;
  // A job that may run with fewer ranks gets as many as fit, from this number to `ranks`; 0: `ranks`.
  uint32_t min_ranks = 0;
  // Groups of this many consecutive ranks stay together on a host: those of a tensor group (parallel.tensor), because
  // they communicate in each layer, and those of command.ranks_per_host. It divides `ranks` and `min_ranks`.
  uint32_t group = 1;
  // A host gets at most one group: with command.ranks_per_host, and in a probe, where each host gets one rank.
  bool one_group_per_host = false;
  uint32_t cpus = 0;       // command.cpus: cores that each rank has for itself; 0: ranks share them
  bool needs_gpu = false;  // each rank needs a GPU, so a host offers at most one slot per GPU
  // All hosts of the job must have the same version, because trainers of different versions are not tested together.
  // Hosts whose version is not known count as having one version.
  bool one_version = false;
  std::optional<std::string> version = {};  // only hosts with this version may be used; nullopt: OfEachVersion chooses
  absl::Span<const HostSlots> hosts = {};   // sorted by SortByTopology; unreachable ones are unusable
  std::vector<HostName> previous = {};      // by rank, of the previous generation; empty: there was none
  std::set<std::string> allowed = {};       // resources.hosts; empty: any host
  std::set<std::string> excluded = {};      // resources.exclude_hosts
  // Hosts that recently could not run this job, with the reason: "the checkpoint of step 40 is not in /runs/a".
  std::map<std::string, std::string> avoided = {};
};

// The number of ranks of each chosen host, in the order of the hosts. No count is 0; each is a multiple of the group.
using RanksByHost = std::vector<std::pair<HostName, uint32_t>>;

uint64_t CountRanks(const RanksByHost& ranks);
// Updates the host after ranks with `cpus` each have ended on it (FreeRanks) or begin on it (TakeRanks).
void FreeRanks(HostSlots& host, uint32_t ranks, uint32_t cpus);
void TakeRanks(HostSlots& host, uint32_t ranks, uint32_t cpus);

struct PlacementDecision {
  std::optional<RanksByHost> ranks_by_host;  // nullopt: the job waits
  // "4 ranks on w1 (2), w2 (2)"; "2 of at most 4 ranks on w1 (2)";
  // "waits for slots: 4 ranks requested, 0 of 2 slots free on 1 host (w1); busy: w1 (job
  // ab12); not used: w2 (cordoned: disk)".
  std::string reason;
};

// A host that ran ranks of the job keeps as many of them as it has free slots; the remaining ranks are placed on the
// hosts in order, up to the free slots of each. Slots that are too few for a group of ranks are not used.
// If the job needs one version and these hosts have several, it gets hosts of the version that lets most of its ranks
// stay on their hosts, then of the one with the most free slots, then of the newest.
PlacementDecision DecidePlacement(const PlacementFacts& facts);
// The number of ranks that DecidePlacement would place now; 0: the job would wait.
uint32_t RanksThatFit(const PlacementFacts& facts);

// How sentences name the version of a host: "version 0.1.0".
std::string VersionName(const std::string& version);

// If the job needs one version and the usable hosts have several: the facts with each of them as `version`, the newest
// version first. Otherwise none.
std::vector<PlacementFacts> OfEachVersion(const PlacementFacts& facts);

// The smallest number of ranks that the job starts with.
uint32_t MinRanks(const PlacementFacts& facts);
// The slots of a host that this job's ranks could use now.
uint32_t Usable(const PlacementFacts& facts, const HostSlots& host);
// Returns why this job may not use the host; empty: it may.
std::string ReasonAgainstHost(const PlacementFacts& facts, const HostSlots& host);
// Whether the job would fit if all slots that it may use were free; only then are slots reserved for it.
bool CouldFit(const PlacementFacts& facts);

}  // namespace trainyard
