#include "coordinator/policy/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

// Lists are cut here, so that a sentence stays one on a large cluster.
constexpr size_t kNamesTold = 3;

std::string Plural(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string TellNames(std::vector<std::string> names) {
  size_t more = names.size() > kNamesTold ? names.size() - kNamesTold : 0;
  if (more > 0) names.resize(kNamesTold);
  std::string text = absl::StrJoin(names, ", ");
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

// The slots of a host that this job's ranks could take.
uint32_t Usable(const PlacementFacts& facts, const HostSlots& host) {
  return facts.needs_gpu ? std::min(host.free, host.gpus) : host.free;
}

std::string TellWaiting(const PlacementFacts& facts, uint64_t free, uint64_t slots) {
  if (facts.hosts.empty()) {
    return absl::StrCat("waits for slots: ", Plural(facts.ranks, "rank"),
                        " asked, no host is attached; start trainyard-worker on one");
  }
  if (facts.needs_gpu) {
    uint64_t gpus = 0;
    for (const HostSlots& host : facts.hosts) gpus += host.gpus;
    if (gpus < facts.ranks) {
      return absl::StrCat("waits for slots: ", Plural(facts.ranks, "rank"), " asked with resources.device cuda, ",
                          Plural(gpus, "GPU"), " on ", Plural(facts.hosts.size(), "host"),
                          "; attach hosts with GPUs, or set resources.device to cpu");
    }
  }
  std::vector<std::string> names;
  for (const HostSlots& host : facts.hosts) names.push_back(host.name.value());
  return absl::StrCat("waits for slots: ", Plural(facts.ranks, "rank"), " asked, ", free, " of ",
                      Plural(slots, "slot"), " free on ", Plural(facts.hosts.size(), "host"), " (", TellNames(names),
                      ")");
}

}  // namespace

PlacementDecision DecidePlacement(const PlacementFacts& facts) {
  uint64_t free = 0;
  uint64_t slots = 0;
  for (const HostSlots& host : facts.hosts) {
    free += Usable(facts, host);
    slots += host.slots;
  }
  if (free < facts.ranks) return {.ranks_by_host = std::nullopt, .reason = TellWaiting(facts, free, slots)};

  std::map<HostName, uint32_t> had;
  for (const HostName& host : facts.previous) had[host]++;
  std::map<HostName, uint32_t> chosen;
  uint32_t left = facts.ranks;
  for (const HostSlots& host : facts.hosts) {
    auto it = had.find(host.name);
    if (it == had.end()) continue;
    uint32_t take = std::min({it->second, Usable(facts, host), left});
    if (take > 0) chosen[host.name] = take;
    left -= take;
  }
  for (const HostSlots& host : facts.hosts) {
    auto it = chosen.find(host.name);
    uint32_t taken = it == chosen.end() ? 0 : it->second;
    uint32_t take = std::min(Usable(facts, host) - taken, left);
    if (take > 0) chosen[host.name] += take;
    left -= take;
  }

  std::vector<std::string> names;
  for (const auto& [host, count] : chosen) names.push_back(absl::StrCat(host.value(), " (", count, ")"));
  std::string reason = absl::StrCat(Plural(facts.ranks, "rank"), " on ", TellNames(names));
  return {.ranks_by_host = std::move(chosen), .reason = std::move(reason)};
}

}  // namespace trainyard
