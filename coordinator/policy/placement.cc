#include "coordinator/policy/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"

namespace trainyard {
namespace {

// The maximum number of names in a list, so that a sentence stays short on a large cluster.
constexpr size_t kMaxNames = 3;

std::string NameList(const std::vector<std::string>& names) { return JoinFirst(names, kMaxNames); }

uint32_t Slots(const PlacementFacts& facts, const HostSlots& host) {
  if (!ReasonAgainstHost(facts, host).empty()) return 0;
  if (facts.one_per_host) return std::min(host.slots, uint32_t{1});
  return facts.needs_gpu ? std::min(host.slots, host.gpus) : host.slots;
}

// The slots of a host that this job's ranks could use now.
uint32_t Usable(const PlacementFacts& facts, const HostSlots& host) { return std::min(host.free, Slots(facts, host)); }

// Describes the free slots, or why there are none.
std::string DescribeSlots(const PlacementFacts& facts) {
  std::vector<std::string> names;
  uint64_t free = 0, slots = 0, gpus = 0;
  for (const HostSlots& host : facts.hosts) {
    if (!ReasonAgainstHost(facts, host).empty()) continue;
    names.push_back(host.name.value());
    free += Usable(facts, host);
    slots += host.slots;
    gpus += host.gpus;
  }
  if (facts.hosts.empty()) return "no host is attached; start trainyard-worker on one";
  if (names.empty()) return "every attached host is excluded";
  size_t hosts = names.size();
  if (facts.needs_gpu && gpus < facts.ranks) {
    return absl::StrCat(
        "found ", Plural(gpus, "GPU"), " on ", Plural(hosts, "host"),
        " (resources.device is cuda, so each rank needs one); attach hosts with GPUs, or set resources.device to cpu");
  }
  return absl::StrCat(free, " of ", Plural(slots, "slot"), " free on ", Plural(hosts, "host"), " (",
                      NameList(std::move(names)), ")");
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
  std::string text =
      absl::StrCat("waits for slots: ", Plural(facts.ranks, "rank"), " requested, ", DescribeSlots(facts));
  if (!busy.empty()) absl::StrAppend(&text, "; busy: ", NameList(std::move(busy)));
  if (!excluded.empty()) absl::StrAppend(&text, "; not used: ", NameList(std::move(excluded)));
  if (!missing.empty()) {
    absl::StrAppend(&text, "; hosts of resources.hosts that are not attached: ", NameList(std::move(missing)));
  }
  return text;
}

// Keeps ranks on their previous hosts as far as slots are free, and sets `kept` to their number on each host. Returns
// the number of ranks that still need a host.
uint32_t KeepHosts(const PlacementFacts& facts, std::map<HostName, uint32_t>& kept) {
  std::map<HostName, uint32_t> previous;
  for (const HostName& host : facts.previous) previous[host]++;
  uint32_t unplaced = facts.ranks;
  for (const HostSlots& host : facts.hosts) {
    auto it = previous.find(host.name);
    if (it == previous.end()) continue;
    const uint32_t count = std::min({it->second, Usable(facts, host), unplaced});
    kept[host.name] = count;
    unplaced -= count;
  }
  return unplaced;
}

}  // namespace

void SortByTopology(std::vector<HostSlots>& hosts) {
  std::sort(hosts.begin(), hosts.end(), [](const HostSlots& a, const HostSlots& b) {
    return std::tie(a.switch_name, a.rack, a.name) < std::tie(b.switch_name, b.rack, b.name);
  });
}

std::string ReasonAgainstHost(const PlacementFacts& facts, const HostSlots& host) {
  if (facts.excluded.count(host.name.value()) > 0) return "in resources.exclude_hosts";
  if (!facts.allowed.empty() && facts.allowed.count(host.name.value()) == 0) return "not in resources.hosts";
  if (auto avoided = facts.avoided.find(host.name.value()); avoided != facts.avoided.end() && host.unusable.empty()) {
    return avoided->second;
  }
  return host.unusable;
}

bool CouldFit(const PlacementFacts& facts) {
  uint64_t slots = 0;
  for (const HostSlots& host : facts.hosts) slots += Slots(facts, host);
  return slots >= facts.ranks;
}

PlacementDecision DecidePlacement(const PlacementFacts& facts) {
  uint64_t free = 0;
  for (const HostSlots& host : facts.hosts) free += Usable(facts, host);
  if (free < facts.ranks) return {.ranks_by_host = std::nullopt, .reason = DescribeWaiting(facts)};

  std::map<HostName, uint32_t> kept_by_host;
  uint32_t unplaced = KeepHosts(facts, kept_by_host);
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
  std::string reason = absl::StrCat(Plural(facts.ranks, "rank"), " on ", NameList(std::move(names)));
  return {.ranks_by_host = std::move(chosen), .reason = std::move(reason)};
}

}  // namespace trainyard
