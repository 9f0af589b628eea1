#include "coordinator/policy/victims.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "coordinator/policy/queue_quota.h"

namespace trainyard {
namespace {

constexpr uint64_t kStartAgainMs = 60'000;  // the cost of starting a rank again

uint64_t CostOf(const RunningJob& job) { return job.unsaved_ms + CountRanks(job.ranks) * kStartAgainMs; }

bool IsCheaper(const RunningJob* a, const RunningJob* b) {
  const auto key = [](const RunningJob& job) {
    return std::make_tuple(job.priority, CostOf(job), absl::UnixEpoch() - job.began, job.id.value());
  };
  return key(*a) < key(*b);
}

// The hosts and the use of the pool as they would be without some jobs.
class Trial {
 public:
  explicit Trial(const VictimFacts& facts)
      : facts_(facts), use_(facts.use), hosts_(facts.hosts.begin(), facts.hosts.end()) {
    for (size_t i = 0; i < hosts_.size(); ++i) {
      index_[hosts_[i].name] = i;
      usable_ += Usable(facts.job->placement, hosts_[i]);
    }
  }

  // `sign`: 1 ends the job, -1 lets it run again.
  void Apply(const RunningJob& job, int sign) {
    for (const auto& [name, ranks] : job.ranks) {
      const auto at = index_.find(name);
      if (at == index_.end()) continue;
      HostSlots& host = hosts_[at->second];
      usable_ -= Usable(facts_.job->placement, host);
      (sign > 0 ? FreeRanks : TakeRanks)(host, ranks, job.cpus);
      usable_ += Usable(facts_.job->placement, host);
    }
    if (job.pool != facts_.job->pool) return;
    // Unsigned numbers wrap around, so the product with -1 is added.
    use_.slots -= static_cast<uint64_t>(sign) * job.use.slots;
    use_.gpus -= static_cast<uint64_t>(sign) * job.use.gpus;
    use_.running -= static_cast<uint64_t>(sign) * job.use.running;
  }

  bool QuotaPermits() const { return DecideQuota(*facts_.rules, use_, *facts_.job).ranks > 0; }
  bool Suffices() const { return usable_ >= MinRanks(facts_.job->placement) && QuotaPermits(); }
  uint64_t usable() const { return usable_; }

  // Whether ending the job could help at all.
  bool Helps(const RunningJob& job) const {
    if (!QuotaPermits()) return job.pool == facts_.job->pool;
    if (usable_ >= MinRanks(facts_.job->placement)) return false;
    return std::any_of(job.ranks.begin(), job.ranks.end(), [&](const auto& host_ranks) {
      const auto at = index_.find(host_ranks.first);
      return at != index_.end() && ReasonAgainstHost(facts_.job->placement, hosts_[at->second]).empty();
    });
  }

 private:
  const VictimFacts& facts_;
  PoolUse use_;
  std::vector<HostSlots> hosts_;
  std::map<HostName, size_t> index_;
  uint64_t usable_ = 0;
};

// Returns the candidate that frees the most slots for the job; the first of equals. Null: none helps.
const RunningJob* FreesMost(Trial& trial, const std::vector<const RunningJob*>& candidates) {
  const RunningJob* best = nullptr;
  uint64_t most = 0;
  for (const RunningJob* candidate : candidates) {
    if (!trial.Helps(*candidate)) continue;
    const uint64_t before = trial.usable();
    trial.Apply(*candidate, 1);
    const uint64_t freed = trial.usable() - before;
    trial.Apply(*candidate, -1);
    if (best != nullptr && freed <= most) continue;
    best = candidate;
    most = freed;
  }
  return best;
}

// Of two choices of victims, the one with fewer jobs is better, then the one whose most expensive job is cheaper.
// REQUIRES: both are sorted by IsCheaper, and not empty.
bool IsBetterChoice(const std::vector<const RunningJob*>& a, const std::vector<const RunningJob*>& b) {
  return a.size() != b.size() ? a.size() < b.size() : IsCheaper(a.back(), b.back());
}

// Chooses victims for a job that needs hosts of one version; its placement is one of `versions`.
std::vector<const RunningJob*> ChooseAmongVersions(const VictimFacts& facts, std::vector<PlacementFacts> versions) {
  std::vector<const RunningJob*> best;
  WaitingJob job = *facts.job;
  VictimFacts limited = facts;
  limited.job = &job;
  for (PlacementFacts& version : versions) {
    job.placement = std::move(version);
    if (Trial(limited).Suffices()) return {};
    std::vector<const RunningJob*> chosen = ChooseVictims(limited);
    if (!chosen.empty() && (best.empty() || IsBetterChoice(chosen, best))) best = std::move(chosen);
  }
  return best;
}

}  // namespace

bool MayPreempt(const QueueRules& rules, const WaitingJob& job, const RunningJob& other) {
  return rules.preemption && RulesOf(rules, job.pool).preempts && RulesOf(rules, other.pool).preemptible &&
         job.priority >= other.priority + rules.min_priority_difference;
}

std::vector<const RunningJob*> ChooseVictims(const VictimFacts& facts) {
  PlacementFacts placement = facts.job->placement;
  placement.hosts = facts.hosts;
  std::vector<PlacementFacts> versions = OfEachVersion(placement);
  if (!versions.empty()) return ChooseAmongVersions(facts, std::move(versions));
  std::vector<const RunningJob*> candidates;
  for (const RunningJob* other : facts.running) {
    if (!other->ending && other->protection.empty() && MayPreempt(*facts.rules, *facts.job, *other)) {
      candidates.push_back(other);
    }
  }
  std::sort(candidates.begin(), candidates.end(), IsCheaper);
  Trial trial(facts);
  if (trial.Suffices()) return {};
  for (const RunningJob* candidate : candidates) {
    trial.Apply(*candidate, 1);
    if (trial.Suffices()) return {candidate};
    trial.Apply(*candidate, -1);
  }
  std::vector<const RunningJob*> chosen;
  while (!trial.Suffices()) {
    const RunningJob* next = chosen.size() < kVictimsMax ? FreesMost(trial, candidates) : nullptr;
    if (next == nullptr) return {};
    trial.Apply(*next, 1);
    chosen.push_back(next);
    std::erase(candidates, next);
  }
  // Removes the jobs that need not end, those of the highest priority and then of the highest cost first.
  std::sort(chosen.begin(), chosen.end(), IsCheaper);
  for (size_t i = chosen.size(); i-- > 0;) {
    trial.Apply(*chosen[i], -1);
    if (trial.Suffices()) {
      chosen.erase(chosen.begin() + static_cast<ptrdiff_t>(i));
    } else {
      trial.Apply(*chosen[i], 1);
    }
  }
  return chosen;
}

}  // namespace trainyard
