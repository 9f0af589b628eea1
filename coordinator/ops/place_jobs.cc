// Places waiting jobs, oldest first: policy/placement chooses the hosts, policy/rendezvous numbers the ranks, the next
// generation is recorded, and the hosts learn of it by their desired state.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/rendezvous.h"

namespace trainyard {
namespace {

constexpr char kThreadsKey[] = "resources.threads_per_rank";

bool HoldsSlot(const Rank& rank) { return !rank.exited() && rank.gone.empty(); }

void ForgetGeneration(Turn& turn, Job& job) {
  for (const auto& [name, ranks] : job.ranks_on) {
    auto host = turn.state.hosts.find(name);
    if (host != turn.state.hosts.end()) host->second.jobs.erase(job.id);
  }
  for (size_t rank = 0; rank < job.ranks.size(); rank += kRanksPerPart) {
    turn.Delete(RankPartKey(job.id, job.head().generation(), static_cast<uint32_t>(rank / kRanksPerPart)));
  }
}

void SetRanks(Turn& turn, Job& job, const std::vector<RankPlace>& places) {
  job.ranks.assign(places.size(), Rank());
  for (size_t i = 0; i < places.size(); ++i) {
    job.ranks[i].record.set_rank(static_cast<uint32_t>(i));
    job.ranks[i].record.set_host(places[i].host.value());
    turn.SaveRank(job, static_cast<uint32_t>(i));
  }
  job.record.set_rank_count(places.size());
  IndexRanks(job);
  for (const auto& [name, ranks] : job.ranks_on) turn.state.hosts.at(name).jobs.insert(job.id);
}

// What only the chosen hosts could tell is added to the decisions of the job.
void DecideThreads(const State& state, Job& job) {
  if (job.head().spec().resources().has_threads_per_rank()) return;
  const auto& [name, ranks] = *job.ranks_on.begin();
  const Host& host = state.hosts.at(name);
  uint32_t threads = ThreadsPerRank(job, host, static_cast<uint32_t>(ranks.size()));
  v1::ResolvedKey* decision = nullptr;
  for (v1::ResolvedKey& key : *job.head().mutable_decisions()) {
    if (key.key() == kThreadsKey) decision = &key;
  }
  if (decision == nullptr) decision = job.head().add_decisions();
  decision->set_key(kThreadsKey);
  decision->set_value(absl::StrCat(threads));
  decision->set_reason(absl::StrCat(host.inventory.cores(), " cores of ", name.value(), " for ", ranks.size(),
                                    ranks.size() == 1 ? " rank" : " ranks",
                                    job.ranks_on.size() > 1 ? "; other hosts decide likewise" : ""));
}

void Place(Turn& turn, Job& job, const PlacementDecision& decision) {
  bool again = job.state() == v1::JOB_STATE_RECOVERING;
  std::vector<HostName> previous;
  for (const Rank& rank : job.ranks) previous.push_back(rank.host());
  std::vector<RankPlace> places = AssignRanks(*decision.ranks_by_host, previous);

  ForgetGeneration(turn, job);
  job.head().set_generation(job.head().generation() + 1);
  if (again) job.head().set_restarts(job.head().restarts() + 1);
  job.record.clear_failure();
  job.store = ValueStore();
  job.nothing_desired = false;
  job.stop = false;
  job.drop_at = absl::InfiniteFuture();
  job.reports_until = absl::InfiniteFuture();
  job.progress_at = turn.now;
  job.unconfirmed.clear();
  SetRanks(turn, job, places);
  DecideThreads(turn.state, job);
  std::string reason = absl::StrCat("generation ", job.head().generation(), ": ", decision.reason);
  if (again && job.head().checkpoints_size() > 0) {
    absl::StrAppend(&reason, ", from step ", job.head().checkpoints(job.head().checkpoints_size() - 1).step());
  }
  turn.Move(job, LifecycleEvent::kPlaced, std::move(reason));
  turn.PushAll(job);
  MoveLogsOfJob(turn, job);
}

std::vector<HostName> HostsOfRanks(const Job& job) {
  std::vector<HostName> hosts;
  for (const Rank& rank : job.ranks) hosts.push_back(rank.host());
  return hosts;
}

// A job that is started again is only placed once everything of its old generation has ended, and not before its time.
bool MayBePlaced(const Turn& turn, Job& job) {
  if (job.state() == v1::JOB_STATE_QUEUED) return true;
  return job.state() == v1::JOB_STATE_RECOVERING && turn.now >= job.restart_at && AllEnded(turn.state, job);
}

}  // namespace

std::vector<HostSlots> FreeSlots(const State& state) {
  std::vector<HostSlots> hosts;
  for (const auto& [name, host] : state.hosts) {
    if (!host.attached() || !host.reachable) continue;
    uint64_t used = host.strays.size();
    for (const JobId& id : host.jobs) {
      const Job& job = state.jobs.at(id);
      auto on = job.ranks_on.find(name);
      if (on == job.ranks_on.end()) continue;
      for (uint32_t rank : on->second) used += HoldsSlot(job.ranks[rank]) ? 1 : 0;
    }
    uint32_t free = used >= host.slots ? 0 : host.slots - static_cast<uint32_t>(used);
    hosts.push_back({.name = name,
                     .slots = host.slots,
                     .free = free,
                     .gpus = static_cast<uint32_t>(host.inventory.gpus_size())});
  }
  return hosts;
}

void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes) {
  std::vector<HostSlots> hosts = FreeSlots(turn.state);
  for (uint64_t index : submit_indexes) {
    auto id = turn.state.by_submission.find(index);
    if (id == turn.state.by_submission.end() || !turn.state.queue.contains(index)) continue;
    Job& job = turn.state.jobs.at(id->second);
    if (!MayBePlaced(turn, job)) continue;
    bool cuda = job.head().spec().resources().device() == v1::DEVICE_CUDA;
    PlacementDecision decision = DecidePlacement(
        {.ranks = job.world_size(), .needs_gpu = cuda, .hosts = hosts, .previous = HostsOfRanks(job)});
    if (!decision.ranks_by_host.has_value()) {
      if (job.head().reason() != decision.reason) turn.SetReason(job, decision.reason);
      continue;
    }
    for (HostSlots& host : hosts) {
      auto chosen = decision.ranks_by_host->find(host.name);
      if (chosen != decision.ranks_by_host->end()) host.free -= chosen->second;
    }
    Place(turn, job, decision);
  }
}

}  // namespace trainyard
