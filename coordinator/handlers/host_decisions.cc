#include "coordinator/handlers/host_decisions.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"

namespace trainyard {
namespace {

// Hosts of earlier versions report the second key under its former name, which is the third entry.
constexpr const char* kKeysOfHosts[] = {"resources.threads_per_rank", "resources.product_kernels",
                                        "resources.mkl_avx512", "network.interface"};
constexpr size_t kValueBytes = 128;
constexpr size_t kReasonBytes = 512;
constexpr size_t kHostsNamed = 4;

bool IsDecidedByHosts(absl::string_view key) {
  return std::any_of(std::begin(kKeysOfHosts), std::end(kKeysOfHosts),
                     [&](absl::string_view known) { return known == key; });
}

v1::ResolvedKey Merge(const std::string& key, const std::map<HostName, v1::ResolvedKey>& by_host) {
  const v1::ResolvedKey& first = by_host.begin()->second;
  bool same = std::all_of(by_host.begin(), by_host.end(),
                          [&](const auto& entry) { return entry.second.value() == first.value(); });
  v1::ResolvedKey merged;
  merged.set_key(key);
  merged.set_value(same ? first.value() : "differs by host");
  std::vector<std::string> reasons;
  for (const auto& [host, decision] : by_host) {
    if (reasons.size() == kHostsNamed) {
      reasons.push_back(Plural(by_host.size() - kHostsNamed, "more host"));
      break;
    }
    if (same && !reasons.empty() && decision.reason() == first.reason()) continue;
    reasons.push_back(same ? decision.reason()
                           : absl::StrCat(host.value(), ": ", decision.value(), " (", decision.reason(), ")"));
  }
  merged.set_reason(CutText(absl::StrJoin(reasons, "; "), kReasonBytes));
  return merged;
}

}  // namespace

void RecordHostDecisions(Turn& turn, Job& job, const HostName& host, const v1::HostDecisions& decided) {
  for (const v1::ResolvedKey& decision : decided.decisions()) {
    if (!IsDecidedByHosts(decision.key())) continue;
    auto& by_host = job.host_decisions[decision.key()];
    // Hosts of earlier generations no longer count.
    if (!by_host.contains(host) && by_host.size() >= job.ranks_on.size()) {
      std::erase_if(by_host, [&](const auto& entry) { return !job.ranks_on.contains(entry.first); });
    }
    v1::ResolvedKey& newest = by_host[host];
    if (newest.value() == decision.value() && newest.reason() == decision.reason()) continue;
    newest = decision;
    newest.set_value(CutText(decision.value(), kValueBytes));
    newest.set_reason(CutText(decision.reason(), kReasonBytes));
    auto* decisions = job.head().mutable_decisions();
    auto merged_before = std::find_if(decisions->begin(), decisions->end(),
                                      [&](const v1::ResolvedKey& known) { return known.key() == decision.key(); });
    // A host that agrees with the merged decision does not change it; merging again for each of a thousand hosts would
    // cost a million comparisons.
    if (merged_before != decisions->end() && merged_before->value() == newest.value() &&
        merged_before->reason() == newest.reason())
      continue;
    v1::ResolvedKey merged = Merge(decision.key(), by_host);
    if (merged_before != decisions->end()) {
      *merged_before = std::move(merged);
    } else {
      *decisions->Add() = std::move(merged);
    }
    turn.Save(job);
  }
}

}  // namespace trainyard
