#include "coordinator/policy/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"

namespace trainyard {
namespace {

// The maximum number of names in a list, so that a sentence stays short on a large cluster.
constexpr size_t kMaxNames = 3;
constexpr size_t kMaxVersionBytes = 64;  // a sentence has no more of a version

std::string NameList(const std::vector<std::string>& names) { return JoinFirst(names, kMaxNames); }

// The parts of a version as they are compared: "0.9.2" is older than "0.10.0".
std::vector<std::pair<uint64_t, std::string>> PartsOfVersion(const std::string& version) {
  std::vector<std::pair<uint64_t, std::string>> parts;
  for (absl::string_view part : absl::StrSplit(version, '.')) {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) number = 0;
    parts.emplace_back(number, std::string(part));
  }
  return parts;
}

// How many of these slots can be used by whole groups of ranks.
uint32_t WholeGroups(const PlacementFacts& facts, uint32_t slots) { return slots - slots % facts.group; }

// For how many of these slots there are enough cores.
uint32_t WithCores(const PlacementFacts& facts, uint32_t slots, uint32_t cores) {
  return facts.cpus == 0 ? slots : std::min(slots, cores / facts.cpus);
}

// The slots of a host that one job could use if all were free.
uint32_t AllSlots(const PlacementFacts& facts, const HostSlots& host) {
  const uint32_t slots = WithCores(facts, facts.needs_gpu ? std::min(host.slots, host.gpus) : host.slots, host.cores);
  return facts.one_group_per_host ? std::min(slots, facts.group) : slots;
}

uint32_t Slots(const PlacementFacts& facts, const HostSlots& host) {
  return ReasonAgainstHost(facts, host).empty() ? WholeGroups(facts, AllSlots(facts, host)) : 0;
}

// Describes the free slots, or why there are none.
std::string DescribeSlots(const PlacementFacts& facts) {
  std::vector<std::string> names;
  uint64_t free = 0, slots = 0, gpus = 0;
  uint32_t largest = 0, most_cores = 0;
  for (const HostSlots& host : facts.hosts) {
    if (!ReasonAgainstHost(facts, host).empty()) continue;
    names.push_back(host.name.value());
    free += Usable(facts, host);
    slots += host.slots;
    gpus += host.gpus;
    largest = std::max(largest, AllSlots(facts, host));
    most_cores = std::max(most_cores, host.cores);
  }
  if (facts.hosts.empty()) return "no host is attached; start trainyard-worker on one";
  if (names.empty()) return "every attached host is excluded";
  size_t hosts = names.size();
  if (facts.needs_gpu && gpus < MinRanks(facts)) {
    return absl::StrCat(
        "found ", Plural(gpus, "GPU"), " on ", Plural(hosts, "host"),
        " (resources.device is cuda, so each rank needs one); attach hosts with GPUs, or set resources.device to cpu");
  }
  if (facts.cpus > 0 && largest < facts.group && most_cores / facts.cpus < facts.group) {
    return absl::StrCat("but the largest host has ", Plural(most_cores, "CPU"), "; attach hosts with ",
                        uint64_t{facts.group} * facts.cpus, ", or choose fewer for each rank (command.cpus)");
  }
  if (largest < facts.group && facts.one_group_per_host) {
    return absl::StrCat("but the largest host has ", Plural(largest, "slot"), "; attach hosts with ", facts.group,
                        " slots, or choose fewer ranks for each host (command.ranks_per_host)");
  }
  if (largest < facts.group) {
    return absl::StrCat("but the ranks of a tensor group share a host, and the largest host has ",
                        Plural(largest, "slot"), "; attach a host with ", facts.group,
                        " slots, or choose a smaller parallel.tensor");
  }
  return absl::StrCat(free, " of ", Plural(slots, "slot"), " free", facts.group > 1 ? " in whole groups" : "", " on ",
                      Plural(hosts, "host"), " (", NameList(std::move(names)), ")");
}

std::string DescribeGroups(const PlacementFacts& facts) {
  if (facts.group == 1) return "";
  if (facts.one_group_per_host) return absl::StrCat(", ", facts.group, " on each host,");
  return absl::StrCat(" in tensor groups of ", facts.group);
}

std::string DescribeCpus(const PlacementFacts& facts) {
  return facts.cpus == 0 ? "" : absl::StrCat(" with ", Plural(facts.cpus, "CPU"), " each (command.cpus)");
}

uint64_t CountUsable(const PlacementFacts& facts) {
  uint64_t free = 0;
  for (const HostSlots& host : facts.hosts) free += Usable(facts, host);
  return free;
}

// Names the versions that divide the hosts which the job may use; empty if these have one version.
std::string DescribeVersions(const PlacementFacts& facts) {
  std::vector<std::string> texts;
  for (const PlacementFacts& one : OfEachVersion(facts)) {
    std::vector<std::string> names;
    for (const HostSlots& host : facts.hosts) {
      if (ReasonAgainstHost(one, host).empty()) names.push_back(host.name.value());
    }
    if (names.empty()) continue;
    texts.push_back(absl::StrCat(VersionName(*one.version), " with ", Plural(CountUsable(one), "free slot"), " (",
                                 NameList(std::move(names)), ")"));
  }
  if (texts.size() < 2) return "";
  return absl::StrCat("; all hosts of a job must have the same version of Trainyard, and these have ",
                      JoinFirst(texts, kMaxNames, " and "),
                      CouldFit(facts) ? "" : "; install one version on enough hosts");
}

std::string DescribeWaiting(const PlacementFacts& facts) {
  std::vector<std::string> excluded, busy, missing;
  for (const HostSlots& host : facts.hosts) {
    std::string why = ReasonAgainstHost(facts, host);
    if (!why.empty()) {
      excluded.push_back(absl::StrCat(host.name.value(), " (", why, ")"));
    } else if (host.free < host.slots && !host.busy_with.empty()) {
      busy.push_back(absl::StrCat(host.name.value(), " (", host.busy_with, ")"));
    }
  }
  std::set<std::string> attached;
  for (const HostSlots& host : facts.hosts) attached.insert(host.name.value());
  for (const std::string& name : facts.allowed) {
    if (attached.count(name) == 0) missing.push_back(name);
  }
  std::string text = absl::StrCat("waits for slots: ", MinRanks(facts) < facts.ranks ? "at least " : "",
                                  Plural(MinRanks(facts), "rank"), DescribeGroups(facts), DescribeCpus(facts),
                                  " requested, ", DescribeSlots(facts), DescribeVersions(facts));
  if (!busy.empty()) absl::StrAppend(&text, "; busy: ", NameList(std::move(busy)));
  if (!excluded.empty()) absl::StrAppend(&text, "; not used: ", NameList(std::move(excluded)));
  if (!missing.empty()) {
    absl::StrAppend(&text, "; hosts of resources.hosts that are not attached: ", NameList(std::move(missing)));
  }
  return text;
}

// Keeps ranks on their previous hosts as far as slots are free, and sets `kept` to their number on each host. Returns
// how many of the `ranks` to be placed still need a host.
uint32_t KeepHosts(const PlacementFacts& facts, uint32_t ranks, std::map<HostName, uint32_t>& kept) {
  std::map<HostName, uint32_t> previous;
  for (const HostName& host : facts.previous) previous[host]++;
  uint32_t unplaced = ranks;
  for (const HostSlots& host : facts.hosts) {
    auto it = previous.find(host.name);
    if (it == previous.end()) continue;
    const uint32_t count = WholeGroups(facts, std::min({it->second, Usable(facts, host), unplaced}));
    kept[host.name] = count;
    unplaced -= count;
  }
  return unplaced;
}

// REQUIRES: `chosen` has the order of the hosts.
bool HaveOneVersion(absl::Span<const HostSlots> hosts, const RanksByHost& chosen) {
  std::set<std::string> versions;
  auto next = chosen.begin();
  for (const HostSlots& host : hosts) {
    if (next == chosen.end() || next->first != host.name) continue;
    versions.insert(host.version);
    ++next;
  }
  return versions.size() <= 1;
}

// `versions`: OfEachVersion(facts). Hosts that would be chosen without regard to their versions are preferred.
PlacementDecision PlaceOnOneVersion(const PlacementFacts& facts, const std::vector<PlacementFacts>& versions) {
  PlacementFacts any = facts;
  any.one_version = false;
  PlacementDecision decision = DecidePlacement(any);
  if (decision.ranks_by_host.has_value() && HaveOneVersion(facts.hosts, *decision.ranks_by_host)) return decision;
  const PlacementFacts* best = nullptr;
  std::pair<uint32_t, uint64_t> most;
  for (const PlacementFacts& one : versions) {
    const uint32_t ranks = RanksThatFit(one);
    if (ranks == 0) continue;
    std::map<HostName, uint32_t> kept;
    const std::pair<uint32_t, uint64_t> value(ranks - KeepHosts(one, ranks, kept), CountUsable(one));
    if (best != nullptr && value <= most) continue;
    best = &one;
    most = value;
  }
  if (best == nullptr) return {.ranks_by_host = std::nullopt, .reason = DescribeWaiting(facts)};
  return DecidePlacement(*best);
}

}  // namespace

std::string VersionName(const std::string& version) {
  return version.empty() ? "an unknown version" : absl::StrCat("version ", version.substr(0, kMaxVersionBytes));
}

uint64_t CountRanks(const RanksByHost& ranks) {
  uint64_t sum = 0;
  for (const auto& [name, count] : ranks) sum += count;
  return sum;
}

void FreeRanks(HostSlots& host, uint32_t ranks, uint32_t cpus) {
  const uint32_t hidden = std::min(host.over, ranks);
  host.over -= hidden;
  host.free += ranks - hidden;
  host.free_cores += ranks * cpus;
}

void TakeRanks(HostSlots& host, uint32_t ranks, uint32_t cpus) {
  host.over += ranks - std::min(host.free, ranks);
  host.free -= std::min(host.free, ranks);
  host.free_cores -= std::min(host.free_cores, ranks * cpus);
}

void SortByTopology(std::vector<HostSlots>& hosts) {
  std::sort(hosts.begin(), hosts.end(), [](const HostSlots& a, const HostSlots& b) {
    return std::tie(a.switch_name, a.rack, a.name) < std::tie(b.switch_name, b.rack, b.name);
  });
}

std::string ReasonAgainstHost(const PlacementFacts& facts, const HostSlots& host) {
  if (facts.excluded.count(host.name.value()) > 0) return "in resources.exclude_hosts";
  if (!facts.allowed.empty() && facts.allowed.count(host.name.value()) == 0) return "not in resources.hosts";
  if (facts.version.has_value() && host.version != *facts.version) {
    return absl::StrCat("has ", VersionName(host.version));
  }
  if (auto avoided = facts.avoided.find(host.name.value()); avoided != facts.avoided.end() && host.unusable.empty()) {
    return avoided->second;
  }
  return host.unusable;
}

std::vector<PlacementFacts> OfEachVersion(const PlacementFacts& facts) {
  if (!facts.one_version || facts.version.has_value()) return {};
  std::set<std::string> found;
  for (const HostSlots& host : facts.hosts) {
    if (host.unusable.empty()) found.insert(host.version);
  }
  if (found.size() < 2) return {};
  std::vector<std::string> versions(found.begin(), found.end());
  std::sort(versions.begin(), versions.end(),
            [](const std::string& a, const std::string& b) { return PartsOfVersion(a) > PartsOfVersion(b); });
  std::vector<PlacementFacts> each;
  for (std::string& version : versions) each.emplace_back(facts).version = std::move(version);
  return each;
}

uint32_t MinRanks(const PlacementFacts& facts) { return facts.min_ranks == 0 ? facts.ranks : facts.min_ranks; }

uint32_t Usable(const PlacementFacts& facts, const HostSlots& host) {
  if (!ReasonAgainstHost(facts, host).empty()) return 0;
  return WholeGroups(facts, std::min(WithCores(facts, host.free, host.free_cores), AllSlots(facts, host)));
}

bool CouldFit(const PlacementFacts& facts) {
  const std::vector<PlacementFacts> versions = OfEachVersion(facts);
  if (!versions.empty()) return std::any_of(versions.begin(), versions.end(), CouldFit);
  uint64_t slots = 0;
  for (const HostSlots& host : facts.hosts) slots += Slots(facts, host);
  return slots >= MinRanks(facts);
}

uint32_t RanksThatFit(const PlacementFacts& facts) {
  const std::vector<PlacementFacts> versions = OfEachVersion(facts);
  if (!versions.empty()) {
    uint32_t most = 0;
    for (const PlacementFacts& one : versions) most = std::max(most, RanksThatFit(one));
    return most;
  }
  const uint64_t free = CountUsable(facts);
  return free < MinRanks(facts) ? 0 : static_cast<uint32_t>(std::min<uint64_t>(free, facts.ranks));
}

PlacementDecision DecidePlacement(const PlacementFacts& facts) {
  const std::vector<PlacementFacts> versions = OfEachVersion(facts);
  if (!versions.empty()) return PlaceOnOneVersion(facts, versions);
  const uint32_t ranks = RanksThatFit(facts);
  if (ranks == 0) return {.ranks_by_host = std::nullopt, .reason = DescribeWaiting(facts)};

  std::map<HostName, uint32_t> kept_by_host;
  uint32_t unplaced = KeepHosts(facts, ranks, kept_by_host);
  RanksByHost chosen;
  std::vector<std::string> names;
  for (const HostSlots& host : facts.hosts) {
    const uint32_t kept = kept_by_host[host.name];
    const uint32_t added = std::min(Usable(facts, host) - kept, unplaced);
    unplaced -= added;
    if (kept + added == 0) continue;
    chosen.emplace_back(host.name, kept + added);
    names.push_back(absl::StrCat(host.name.value(), " (", kept + added, ")"));
  }
  std::string reason = absl::StrCat(
      ranks < facts.ranks ? absl::StrCat(ranks, " of at most ", Plural(facts.ranks, "rank")) : Plural(ranks, "rank"),
      " on ", NameList(std::move(names)));
  return {.ranks_by_host = std::move(chosen), .reason = std::move(reason)};
}

}  // namespace trainyard
