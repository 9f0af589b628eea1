// The order of the queue (queue.h).
#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/policy/queue.h"

namespace trainyard {
namespace {

// Fractions are compared as integers, so that every machine decides alike.
constexpr uint64_t kWhole = 1'000'000;

struct Capacity {
  uint64_t slots = 0;
  uint64_t gpus = 0;
};

Capacity CapacityOf(absl::Span<const HostSlots> hosts) {
  Capacity capacity;
  for (const HostSlots& host : hosts) {
    capacity.slots += host.slots;
    capacity.gpus += std::min(host.slots, host.gpus);
  }
  return capacity;
}

// The largest used fraction of a resource, divided by the weight.
uint64_t WeightedShare(const PoolUse& use, const Capacity& capacity, uint64_t weight_milli) {
  const uint64_t slots = use.slots * kWhole / std::max<uint64_t>(1, capacity.slots);
  const uint64_t gpus = capacity.gpus == 0 ? 0 : use.gpus * kWhole / capacity.gpus;
  return std::max(slots, gpus) * 1'000 / std::max<uint64_t>(1, weight_milli);
}

// Orders jobs of one priority: by submission within a pool, fairly between pools. Adds to `use` what the jobs need.
void OrderFairly(const QueueFacts& facts, const Capacity& capacity, const std::vector<size_t>& jobs,
                 std::map<std::string, PoolUse>& use, std::vector<size_t>& order) {
  std::map<std::string, std::deque<size_t>> queues;
  for (size_t job : jobs) queues[facts.waiting[job].pool].push_back(job);
  // By share, then the submission of the first job.
  std::map<std::pair<uint64_t, uint64_t>, std::string> next;
  const auto add = [&](const std::string& pool) {
    const std::deque<size_t>& queue = queues.at(pool);
    if (queue.empty()) return;
    const uint64_t share = WeightedShare(use[pool], capacity, RulesOf(*facts.rules, pool).weight_milli);
    next.emplace(std::make_pair(share, facts.waiting[queue.front()].index), pool);
  };
  for (const auto& [pool, queue] : queues) add(pool);
  while (!next.empty()) {
    const std::string pool = next.begin()->second;
    next.erase(next.begin());
    std::deque<size_t>& queue = queues.at(pool);
    const WaitingJob& job = facts.waiting[queue.front()];
    order.push_back(queue.front());
    queue.pop_front();
    PoolUse& charged = use[pool];
    charged.slots += MinRanks(job.placement);
    charged.gpus += job.wants_gpus ? MinRanks(job.placement) : 0;
    add(pool);
  }
}

}  // namespace

std::vector<size_t> OrderQueue(const QueueFacts& facts) {
  std::vector<size_t> sorted(facts.waiting.size());
  for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
    const WaitingJob &x = facts.waiting[a], &y = facts.waiting[b];
    if (x.continues != y.continues) return x.continues;
    // Jobs that continue are ordered by submission alone: their slots are kept for them anyway.
    if (!x.continues && x.priority != y.priority) return x.priority > y.priority;
    return x.index < y.index;
  });
  const Capacity capacity = CapacityOf(facts.hosts);
  std::map<std::string, PoolUse> use = facts.use;
  std::vector<size_t> order;
  order.reserve(sorted.size());
  for (size_t begin = 0; begin < sorted.size();) {
    const WaitingJob& first = facts.waiting[sorted[begin]];
    size_t end = begin;
    while (end < sorted.size() && facts.waiting[sorted[end]].continues == first.continues &&
           (first.continues || facts.waiting[sorted[end]].priority == first.priority)) {
      ++end;
    }
    const std::vector<size_t> group(sorted.begin() + static_cast<ptrdiff_t>(begin),
                                    sorted.begin() + static_cast<ptrdiff_t>(end));
    if (first.continues) {
      order.insert(order.end(), group.begin(), group.end());
    } else {
      OrderFairly(facts, capacity, group, use, order);
    }
    begin = end;
  }
  return order;
}

}  // namespace trainyard
