#include "coordinator/handlers/queue_totals.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/desired.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {
namespace {

uint64_t GpusOf(const State& state, const Job& job) {
  if (!ChoosesDeviceItself(job)) return DeviceOf(job) == v1::DEVICE_CUDA ? job.ranks.size() : 0;
  uint64_t gpus = 0;
  for (const auto& [name, ranks] : job.ranks_on) {
    const auto host = state.hosts.find(name);
    if (host != state.hosts.end() && host->second.inventory.gpus_size() > 0) gpus += ranks.size();
  }
  return gpus;
}

}  // namespace

PoolUse UseOf(const State& state, const Job& job) {
  const bool waits_again = job.state() == v1::JOB_STATE_QUEUED && job.record.admitted();
  if (!HasTrainers(job.state()) && !waits_again) return {};
  return {.slots = job.ranks.size(), .gpus = GpusOf(state, job), .running = 1};
}

std::map<std::string, PoolUse> CountUse(const State& state) {
  std::map<std::string, PoolUse> use;
  const auto add = [&](const Job& job) {
    const PoolUse own = UseOf(state, job);
    PoolUse& pool = use[PoolOf(state.options.queue, job.namespace_name())];
    pool.slots += own.slots;
    pool.gpus += own.gpus;
    pool.running += own.running;
  };
  for (const JobId& id : state.active) add(state.jobs.at(id));
  // Other waiting jobs use nothing, and there may be thousands of them.
  for (uint64_t index : state.queued_again) {
    const Job& job = state.jobs.at(state.by_submission.at(index));
    if (!HasTrainers(job.state())) add(job);  // a job that recovers is active, too
  }
  return use;
}

std::vector<PoolTotals> CountPools(const State& state, absl::Time now) {
  std::map<std::string, PoolTotals> pools;
  const auto pool_of = [&](const std::string& name) -> PoolTotals& { return pools[PoolOf(state.options.queue, name)]; };
  for (const auto& [name, rules] : state.options.queue.namespaces) pool_of(name);
  for (const auto& [name, count] : state.unfinished) pool_of(name);
  for (const auto& [name, count] : state.queued) pool_of(name).queued += count;
  for (auto& [name, use] : CountUse(state)) pools[name].use = use;
  for (uint64_t index : state.queue) {
    const Job& job = state.jobs.at(state.by_submission.at(index));
    PoolTotals& totals = pool_of(job.namespace_name());
    totals.oldest_wait = std::max(totals.oldest_wait, now - job.waiting_since);
  }
  // Past preemptions alone do not list a namespace: with a namespace for each experiment, the list would only grow.
  for (const auto& [name, count] : state.preemptions) {
    const auto pool = pools.find(PoolOf(state.options.queue, name));
    if (pool != pools.end()) pool->second.preemptions += count;
  }
  std::vector<PoolTotals> sorted;
  for (auto& [name, totals] : pools) {
    totals.pool = name;
    sorted.push_back(std::move(totals));
  }
  return sorted;
}

}  // namespace trainyard
