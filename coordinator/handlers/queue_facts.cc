#include "coordinator/handlers/queue_facts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/desired.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/preempt_jobs.h"
#include "coordinator/handlers/queue_totals.h"
#include "coordinator/handlers/slots.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

// Whether the job is a probe that names its hosts, each of which gets one rank.
bool IsProbeOfHosts(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  return spec.has_probe() && static_cast<uint32_t>(spec.resources().hosts_size()) == job.world_size();
}

bool ContinuesInQueue(const Job& job) {
  return job.state() == v1::JOB_STATE_RECOVERING || (job.state() == v1::JOB_STATE_QUEUED && job.record.admitted());
}

// Whether every known host has attached, or has had the time to attach.
bool IsSettled(const Turn& turn) {
  if (HostsHadTime(turn)) return true;
  return std::all_of(turn.state.hosts.begin(), turn.state.hosts.end(),
                     [](const auto& host) { return host.second.attached(); });
}

RunningJob MakeRunningJob(const Turn& turn, const Job& job) {
  RunningJob running{.id = job.id,
                     .pool = PoolOf(turn.state.options.queue, job.namespace_name()),
                     .priority = job.priority(),
                     .ranks = {},
                     .cpus = job.head().spec().command().cpus(),
                     .use = UseOf(turn.state, job),
                     .ending = job.state() == v1::JOB_STATE_STOPPING,
                     .protection = "",
                     .unsaved_ms = 0,
                     .began = job.current.running_since};
  for (const auto& [host, ranks] : job.ranks_on) {
    const auto count =
        std::count_if(ranks.begin(), ranks.end(), [&](uint32_t rank) { return !job.ranks[rank].ended(); });
    if (count > 0) running.ranks.emplace_back(host, static_cast<uint32_t>(count));
  }
  if (running.ending) return running;
  running.protection = ProtectionOf(turn, job);
  running.unsaved_ms = AccountedTo(job, turn.steady).since_saved_ms();
  return running;
}

// The ranks of the job's last group that UsedSlotsOf counts because their slots are kept, by host.
RanksByHost KeptRanks(const State& state, const Job& job) {
  return KeepsSlots(job) ? RanksWithSlots(state, job) : RanksByHost();
}

// Returns why a job in the queue must not be placed yet; empty: it may.
std::string NotYet(const Turn& turn, const Job& job) {
  if (job.state() != v1::JOB_STATE_RECOVERING) return "";
  if (!AllEnded(job)) return "waits for the end of its last group";
  if (turn.now >= job.restart_at) return "";
  return absl::StrCat("starts again in ", absl::FormatDuration(absl::Ceil(job.restart_at - turn.now, absl::Seconds(1))),
                      " after a failure");
}

}  // namespace

bool HostsHadTime(const Turn& turn) { return turn.now - turn.state.started_at >= 2 * turn.state.options.lease; }

std::vector<HostName> HostsOfRanks(const Job& job) {
  std::vector<HostName> hosts;
  for (const Rank& rank : job.ranks) hosts.push_back(rank.host());
  return hosts;
}

uint32_t RankGroup(const Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.has_command()) return std::max(1u, spec.command().ranks_per_host());
  return static_cast<uint32_t>(LayoutOf(spec).tensor);
}

bool NeedsOneVersion(const Job& job) { return job.head().spec().has_train(); }

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

PlacementFacts MakePlacementFacts(absl::Time now, const Job& job, const std::vector<HostSlots>& hosts) {
  const v1::Resources& resources = job.head().spec().resources();
  PlacementFacts facts{.ranks = job.world_size(),
                       .min_ranks = job.head().spec().command().min_ranks(),
                       .group = RankGroup(job),
                       .one_group_per_host = job.head().spec().command().has_ranks_per_host() || IsProbeOfHosts(job),
                       .cpus = job.head().spec().command().cpus(),
                       .needs_gpu = resources.device() == v1::DEVICE_CUDA,
                       .one_version = NeedsOneVersion(job),
                       .hosts = hosts,
                       .previous = HostsOfRanks(job),
                       .allowed = {resources.hosts().begin(), resources.hosts().end()},
                       .excluded = {resources.exclude_hosts().begin(), resources.exclude_hosts().end()},
                       .avoided = AvoidedNow(now, job, /*with_last_resorts=*/true)};
  // Placing the job where it may fail again is better than not placing it.
  if (!facts.avoided.empty() && !CouldFit(facts)) facts.avoided = AvoidedNow(now, job, /*with_last_resorts=*/false);
  return facts;
}

WaitingJob MakeWaitingJob(const Turn& turn, const Job& job, const std::vector<HostSlots>& hosts) {
  WaitingJob waiting{.index = job.record.submit_index(),
                     .id = job.id,
                     .pool = PoolOf(turn.state.options.queue, job.namespace_name()),
                     .priority = job.priority(),
                     .continues = ContinuesInQueue(job),
                     .had_ranks = static_cast<uint32_t>(job.ranks.size()),
                     .kept = KeptRanks(turn.state, job),
                     .wants_gpus = false,
                     .is_preempting = false,
                     .victims = EndingFor(turn.state, job),
                     .waited = turn.now - job.waiting_since,
                     .not_yet = NotYet(turn, job),
                     .placement = MakePlacementFacts(turn.now, job, hosts)};
  waiting.is_preempting = !waiting.victims.empty();
  waiting.wants_gpus = waiting.placement.needs_gpu;
  if (!job.head().spec().resources().has_device() || ChoosesDeviceItself(job)) {
    // Whether the job computes on GPUs is decided when it has hosts, by the coordinator or by the command itself;
    // before that, it is assumed to want existing GPUs.
    waiting.wants_gpus = std::any_of(hosts.begin(), hosts.end(), [](const HostSlots& host) { return host.gpus > 0; });
  }
  return waiting;
}

QueueView MakeQueueView(const Turn& turn, const std::set<uint64_t>& indexes) {
  QueueView view{.hosts = AllHosts(turn.state), .facts = {}};
  QueueFacts& facts = view.facts;
  facts.rules = &turn.state.options.queue;
  facts.hosts = view.hosts;
  facts.use = CountUse(turn.state);
  facts.settled = IsSettled(turn);
  // A view of a part of the queue must not choose victims.
  facts.may_preempt = indexes.size() == turn.state.queue.size();
  for (uint64_t index : indexes) {
    const Job& job = turn.state.jobs.at(turn.state.by_submission.at(index));
    if (job.held_at == 0) facts.waiting.push_back(MakeWaitingJob(turn, job, view.hosts));
  }
  if (!facts.rules->preemption) return view;
  for (const JobId& id : turn.state.active) {
    const Job& job = turn.state.jobs.at(id);
    if (job.state() != v1::JOB_STATE_RECOVERING && !KeepsSlots(job)) facts.running.push_back(MakeRunningJob(turn, job));
  }
  return view;
}

}  // namespace trainyard
