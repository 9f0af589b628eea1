#include "coordinator/handlers/place_jobs.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/begin_generation.h"
#include "coordinator/handlers/log_readers.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/device.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/rank_assignment.h"
#include "coordinator/policy/saves.h"
#include "spec/device_rules.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

constexpr size_t kJobsNamed = 3;
constexpr size_t kDeviceReasonBytes = 512;
constexpr char kThreadsKey[] = "resources.threads_per_rank";
constexpr char kSharedMemoryKey[] = "network.shared_memory";

v1::ResolvedKey& DecisionOf(Job& job, absl::string_view key) {
  for (v1::ResolvedKey& known : *job.head().mutable_decisions()) {
    if (known.key() == key) return known;
  }
  v1::ResolvedKey& added = *job.head().add_decisions();
  added.set_key(std::string(key));
  return added;
}

// These functions add to the job's decisions what depends on the chosen hosts.
void DecideSharedMemory(Job& job) {
  if (job.ranks.size() == 1 || job.head().spec().network().has_shared_memory()) return;
  const bool one_host = job.ranks_on.size() == 1;
  v1::ResolvedKey& decision = DecisionOf(job, kSharedMemoryKey);
  decision.set_value(one_host ? "on" : "off");
  decision.set_reason(
      one_host ? absl::StrCat("all ", Plural(job.ranks.size(), "rank"), " are on ", job.ranks_on.begin()->first.value())
               : absl::StrCat("the ranks are on ", Plural(job.ranks_on.size(), "host")));
}

void DecideThreads(const State& state, Job& job) {
  if (job.head().spec().resources().has_threads_per_rank()) return;
  const auto& [name, ranks] = *job.ranks_on.begin();
  const Host& host = state.hosts.at(name);
  uint32_t threads = ThreadsPerRank(job, host, static_cast<uint32_t>(ranks.size()));
  v1::ResolvedKey& decision = DecisionOf(job, kThreadsKey);
  decision.set_value(absl::StrCat(threads));
  decision.set_reason(absl::StrCat(Plural(host.inventory.cores(), "core"), " of ", name.value(), " for ",
                                   Plural(ranks.size(), "rank"),
                                   job.ranks_on.size() > 1 ? "; other hosts decide likewise" : ""));
}

// Returns the other jobs on the host that may compute on its GPUs.
std::string OtherJobsOnGpus(const State& state, const Host& host, const Job& job) {
  std::string others;
  size_t count = 0;
  for (const JobId& id : host.jobs) {
    if (id == job.id || DeviceOf(state.jobs.at(id)) != v1::DEVICE_CUDA) continue;
    if (++count <= kJobsNamed) absl::StrAppend(&others, count == 1 ? "job " : ", job ", id.value());
  }
  if (!host.strays.empty() || !host.held.empty() || !host.unknown.empty())
    absl::StrAppend(&others, count == 0 ? "" : ", ", "trainers of other generations or of unknown jobs");
  if (count > kJobsNamed) absl::StrAppend(&others, " and ", Plural(count - kJobsNamed, "more job"));
  return others;
}

// Chooses the device once the ranks have their hosts.
void ChooseDevice(const State& state, Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.resources().has_device()) return;
  DeviceFacts facts{.needs_bfloat16 = NeedsBfloat16(spec), .hosts = {}};
  for (const auto& [name, ranks] : job.ranks_on) {
    const Host& host = state.hosts.at(name);
    DeviceHost& known = facts.hosts.emplace_back();
    known.name = name;
    known.ranks = static_cast<uint32_t>(ranks.size());
    known.gpus = static_cast<uint32_t>(host.inventory.gpus_size());
    known.gpu_note = host.inventory.gpu_note();
    known.cuda_note = host.inventory.cuda_note();
    known.other_jobs = OtherJobsOnGpus(state, host, job);
    for (const v1::Gpu& gpu : host.inventory.gpus()) {
      known.compute_major =
          known.compute_major == 0 ? gpu.compute_major() : std::min(known.compute_major, gpu.compute_major());
    }
  }
  const DeviceDecision decision = DecideDevice(facts);
  v1::ResolvedKey& device = DecisionOf(job, kDeviceKey);
  device.set_value(decision.cuda ? kCudaValue : "cpu");
  device.set_reason(CutText(decision.reason, kDeviceReasonBytes));
}

std::vector<HostName> HostsOfRanks(const Job& job) {
  std::vector<HostName> hosts;
  for (const Rank& rank : job.ranks) hosts.push_back(rank.host());
  return hosts;
}

// The number of consecutive ranks that share a host.
uint32_t RankGroup(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.has_command()) return std::max(1u, spec.command().ranks_per_host());
  return static_cast<uint32_t>(LayoutOf(spec).tensor);
}

// Each host that a probe names gets one rank.
bool IsProbeOfHosts(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  return spec.has_probe() && static_cast<uint32_t>(spec.resources().hosts_size()) == job.world_size();
}

void Place(Turn& turn, Job& job, const PlacementDecision& decision) {
  const bool again = job.head().generation() > 0 || job.past_generation > 0;
  BeginGeneration(turn, job, AssignRanks(*decision.ranks_by_host, HostsOfRanks(job), RankGroup(job)));
  ChooseDevice(turn.state, job);
  if (!job.head().spec().has_command()) {
    DecideThreads(turn.state, job);
    DecideSharedMemory(job);
  }
  std::string reason = absl::StrCat("generation ", job.head().generation(), ": ", decision.reason);
  uint64_t step = job.record.restored_step();
  step = NewestResumeStep(job.head(), job.record.grants()).value_or(step);
  if (again && step > 0) absl::StrAppend(&reason, ", from step ", step);
  turn.Decide(job, DecisionRule::kPlacement, NoticeLevel::kInfo, reason);
  turn.Move(job, LifecycleEvent::kPlaced, std::move(reason));
  turn.PushAll(job);
  MoveLogsOfJob(turn, job);
}

// A job that restarts is placed once everything of its old generation has ended and its delay has passed.
bool MayBePlaced(const Turn& turn, Job& job) {
  if (job.held_at != 0) return false;
  if (job.state() == v1::JOB_STATE_QUEUED) return true;
  return job.state() == v1::JOB_STATE_RECOVERING && turn.now >= job.restart_at && AllEnded(job);
}

// Returns all hosts; those that cannot be reached only by name, so that the reason for waiting can name them.
std::vector<HostSlots> AllHosts(const State& state) {
  std::vector<HostSlots> hosts = FreeSlots(state);
  for (const auto& [name, host] : state.hosts) {
    if (host.attached() && host.reachable) continue;
    HostSlots unavailable;
    unavailable.name = name;
    unavailable.unusable = host.attached() || !host.reachable ? "unreachable" : "not attached";
    hosts.push_back(std::move(unavailable));
  }
  SortByTopology(hosts);
  return hosts;
}

PlacementFacts MakeFacts(absl::Time now, const Job& job, const std::vector<HostSlots>& hosts) {
  const v1::Resources& resources = job.head().spec().resources();
  PlacementFacts facts{.ranks = job.world_size(),
                       .min_ranks = job.head().spec().command().min_ranks(),
                       .group = RankGroup(job),
                       .one_group_per_host = job.head().spec().command().has_ranks_per_host() || IsProbeOfHosts(job),
                       .cpus = job.head().spec().command().cpus(),
                       .needs_gpu = resources.device() == v1::DEVICE_CUDA,
                       .hosts = hosts,
                       .previous = HostsOfRanks(job),
                       .allowed = {resources.hosts().begin(), resources.hosts().end()},
                       .excluded = {resources.exclude_hosts().begin(), resources.exclude_hosts().end()},
                       .avoided = AvoidedNow(now, job, /*with_last_resorts=*/true)};
  // Placing the job where it may fail again is better than not placing it.
  if (!facts.avoided.empty() && !CouldFit(facts)) facts.avoided = AvoidedNow(now, job, /*with_last_resorts=*/false);
  return facts;
}

// Reserves the hosts that this job could use, because it has waited for long; later jobs must not use them.
void ReserveFor(const Turn& turn, const Job& job, std::vector<HostSlots>& hosts) {
  PlacementFacts facts = MakeFacts(turn.now, job, hosts);
  if (!CouldFit(facts)) return;  // it could not be placed even if the others waited
  std::string why = absl::StrCat("reserved for job ", job.id.value(), ", which has waited for ",
                                 absl::FormatDuration(absl::Trunc(turn.now - job.waiting_since, absl::Seconds(1))));
  std::vector<bool> may_use;
  for (const HostSlots& host : hosts) may_use.push_back(ReasonAgainstHost(facts, host).empty());
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (may_use[i]) hosts[i].unusable = why;
  }
}

}  // namespace

uint32_t RanksIfStartedAgain(absl::Time now, const State& state, const Job& job) {
  std::vector<HostSlots> hosts = AllHosts(state);
  for (HostSlots& host : hosts) {
    const auto own = job.ranks_on.find(host.name);
    if (own == job.ranks_on.end()) continue;
    const uint32_t ranks = static_cast<uint32_t>(own->second.size());
    host.free = std::min(host.slots, host.free + ranks);
    host.free_cores = std::min(host.cores, host.free_cores + ranks * job.head().spec().command().cpus());
  }
  return RanksThatFit(MakeFacts(now, job, hosts));
}

bool AnyWaitingJobCouldFit(const Turn& turn) {
  if (turn.state.queue.empty()) return false;
  const std::vector<HostSlots> hosts = AllHosts(turn.state);
  return std::any_of(turn.state.queue.begin(), turn.state.queue.end(), [&](uint64_t index) {
    return CouldFit(MakeFacts(turn.now, turn.state.jobs.at(turn.state.by_submission.at(index)), hosts));
  });
}

bool FitsWithout(absl::Time now, const State& state, const Job& job, const std::vector<std::string>& without) {
  std::vector<HostSlots> hosts = AllHosts(state);
  PlacementFacts facts = MakeFacts(now, job, hosts);
  facts.avoided = AvoidedNow(now, job, /*with_last_resorts=*/true);
  facts.excluded.insert(without.begin(), without.end());
  return CouldFit(facts);
}

void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes) {
  std::set<uint64_t> indexes = submit_indexes;
  indexes.insert(turn.state.overdue.begin(), turn.state.overdue.end());
  std::erase_if(indexes, [&](uint64_t index) { return !turn.state.queue.contains(index); });
  if (indexes.empty()) return;
  std::vector<HostSlots> hosts = AllHosts(turn.state);
  for (uint64_t index : indexes) {
    Job& job = turn.state.jobs.at(turn.state.by_submission.at(index));
    if (!MayBePlaced(turn, job)) continue;
    PlacementDecision decision = DecidePlacement(MakeFacts(turn.now, job, hosts));
    if (!decision.ranks_by_host.has_value()) {
      if (job.head().reason() != decision.reason) turn.SetReason(job, decision.reason);
      if (turn.state.overdue.contains(index)) ReserveFor(turn, job, hosts);
      continue;
    }
    for (const auto& [name, ranks] : *decision.ranks_by_host) {
      auto chosen = std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& host) { return host.name == name; });
      chosen->free -= ranks;
      chosen->free_cores -= ranks * job.head().spec().command().cpus();
      absl::StrAppend(&chosen->busy_with, chosen->busy_with.empty() ? "" : ", ", "job ", job.id.value());
    }
    Place(turn, job, decision);
  }
}

}  // namespace trainyard
