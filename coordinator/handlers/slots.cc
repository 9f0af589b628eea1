#include "coordinator/handlers/slots.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/state.h"
#include "coordinator/policy/placement.h"

namespace trainyard {
namespace {

// Returns whether a rank of the recorded group uses a slot. If the job is held (Job::held_at), a later group runs and
// is counted through Host::held, so a recorded rank counts only if it was seen running.
bool HoldsSlot(const Job& job, const Rank& rank) {
  return (!rank.ended() || KeepsSlots(job)) && (job.held_at == 0 || rank.seen_running);
}

// Returns why nothing new may be placed on the host; empty if the host may be used.
std::string ReasonAgainstPlacement(const Host& host) {
  if (!host.trouble.empty()) return host.trouble;
  if (host.draining) return "its daemon is leaving";
  if (!host.record.cordoned()) return "";
  const std::string& reason = host.record.cordon_reason();
  return reason.empty() ? "cordoned" : absl::StrCat("cordoned: ", reason);
}

std::string LabelOf(const Host& host, const char* label) {
  auto it = host.inventory.labels().find(label);
  return it == host.inventory.labels().end() ? "" : it->second;
}

}  // namespace

bool KeepsSlots(const Job& job) {
  if (job.held_at != 0 || job.left_slots || job.record.cancelled()) return false;
  switch (job.state()) {
    case v1::JOB_STATE_RECOVERING:
      return true;
    case v1::JOB_STATE_STOPPING:
      return job.record.ending() == v1::JobRecord::ENDING_RESTART;
    case v1::JOB_STATE_QUEUED:
      return job.record.admitted();
    default:
      return false;
  }
}

UsedSlots UsedSlotsOf(const State& state, const Host& host) {
  UsedSlots used;
  used.count = host.strays.size() + host.held.size() + host.unknown.size();
  auto add_reason = [&used](absl::string_view reason) {
    absl::StrAppend(&used.busy_with, used.busy_with.empty() ? "" : ", ", reason);
  };
  if (!host.strays.empty()) add_reason("trainers of past generations");
  if (!host.held.empty()) add_reason("trainers of a generation that the store does not know");
  if (!host.unknown.empty()) add_reason("an unknown job");
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto host_ranks = job.ranks_on.find(host.name);
    if (host_ranks == job.ranks_on.end()) continue;
    const auto count = std::count_if(host_ranks->second.begin(), host_ranks->second.end(),
                                     [&](uint32_t rank) { return HoldsSlot(job, job.ranks[rank]); });
    if (count > 0) add_reason(absl::StrCat("job ", id.value()));
    used.count += static_cast<uint64_t>(count);
    used.cpus += static_cast<uint64_t>(count) * job.head().spec().command().cpus();
  }
  return used;
}

RanksByHost RanksWithSlots(const State& state, const Job& job) {
  RanksByHost by_host;
  for (const auto& [name, ranks] : job.ranks_on) {
    // A new host with the name of a forgotten one does not list the job.
    const auto host = state.hosts.find(name);
    if (host == state.hosts.end() || !host->second.jobs.contains(job.id)) continue;
    const auto count =
        std::count_if(ranks.begin(), ranks.end(), [&](uint32_t rank) { return HoldsSlot(job, job.ranks[rank]); });
    if (count > 0) by_host.emplace_back(name, static_cast<uint32_t>(count));
  }
  return by_host;
}

std::vector<HostSlots> FreeSlots(const State& state) {
  std::vector<HostSlots> hosts;
  for (const auto& [name, host] : state.hosts) {
    if (!host.attached() || !host.reachable) continue;
    UsedSlots used = UsedSlotsOf(state, host);
    HostSlots& slots = hosts.emplace_back();
    slots.busy_with = std::move(used.busy_with);
    slots.name = name;
    slots.slots = host.slots;
    slots.free = host.slots - static_cast<uint32_t>(std::min<uint64_t>(used.count, host.slots));
    slots.over = static_cast<uint32_t>(used.count - std::min<uint64_t>(used.count, host.slots));
    slots.cores = host.inventory.cores();
    slots.free_cores = slots.cores - static_cast<uint32_t>(std::min<uint64_t>(used.cpus, slots.cores));
    slots.gpus = static_cast<uint32_t>(host.inventory.gpus_size());
    slots.switch_name = LabelOf(host, "switch");
    slots.rack = LabelOf(host, "rack");
    slots.version = host.inventory.version();
    slots.unusable = ReasonAgainstPlacement(host);
  }
  return hosts;
}

}  // namespace trainyard
