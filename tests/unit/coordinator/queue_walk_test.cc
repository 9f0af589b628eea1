// Random walks over the rules of the queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/queue_quota.h"
#include "tests/unit/coordinator/queue_jobs.h"

namespace trainyard {
namespace {

// Each pool consists of one namespace, which has the same name.
constexpr const char* kPools[] = {"a", "b", "c"};

// A queue with hosts and jobs that are drawn from a seed, and the checks of one decision.
class QueueWalk {
 public:
  explicit QueueWalk(uint64_t seed) : random_(seed) {
    DrawRules();
    for (uint64_t h = 0; h <= Below(4); ++h) {
      hosts_.push_back(MakeHost(absl::StrCat("h", h), static_cast<uint32_t>(1 + Below(6)), 0));
      hosts_.back().free = hosts_.back().slots;
    }
    for (uint64_t r = Below(6); r > 0; --r) DrawRunning(r);
    for (uint64_t w = 1; w <= 1 + Below(8); ++w) DrawWaiting(w);
    facts_.rules = &rules_;
    facts_.hosts = hosts_;
  }

  void Check() {
    const std::vector<QueueOutcome> outcomes = DecideQueue(facts_);
    ASSERT_EQ(outcomes.size(), facts_.waiting.size());
    use_ = facts_.use;
    for (const HostSlots& host : hosts_) free_[host.name] = host.free;
    for (const QueueOutcome& outcome : outcomes) {
      const WaitingJob& job = facts_.waiting[outcome.waiting];
      if (outcome.start.has_value()) {
        CheckStart(job, *outcome.start);
      } else {
        CheckWait(job, outcome);
      }
    }
    const std::vector<QueueOutcome> again = DecideQueue(facts_);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      EXPECT_EQ(again[i].start, outcomes[i].start);
      EXPECT_EQ(again[i].preempt, outcomes[i].preempt);
      EXPECT_EQ(again[i].reason, outcomes[i].reason);
    }
  }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  uint32_t Below32(uint64_t n) { return static_cast<uint32_t>(Below(n)); }

  void DrawRules() {
    rules_.preemption = Below(2) == 0;
    rules_.min_priority_difference = 1 + Below32(30);
    for (const char* pool : kPools) {
      if (Below(2) == 0) rules_.namespaces[pool].max_slots = Below32(10);
      if (Below(4) == 0) rules_.namespaces[pool].max_running = Below32(4);
      rules_.namespaces[pool].preemptible = Below(5) != 0;
    }
  }
  void DrawRunning(uint64_t number) {
    HostSlots& host = hosts_[Below(hosts_.size())];
    if (host.free == 0) return;
    const uint32_t ranks = 1 + Below32(host.free);
    host.free -= ranks;
    RunningJob job = MakeRunning(absl::StrCat("r", number), {{host.name, ranks}}, Below32(101), kPools[Below(3)]);
    job.ending = Below(5) == 0;
    if (Below(4) == 0) job.protection = "it is protected";
    job.unsaved_ms = Below(100'000);
    facts_.use[job.pool].slots += ranks;
    ++facts_.use[job.pool].running;
    facts_.running.push_back(std::move(job));
  }
  void DrawWaiting(uint64_t number) {
    WaitingJob job = MakeWaiting(number, 1 + Below32(6), Below32(101), kPools[Below(3)]);
    if (Below(4) == 0) job.placement.min_ranks = 1 + Below32(job.placement.ranks);
    if (Below(3) == 0) job.waited = rules_.overtake;
    facts_.waiting.push_back(std::move(job));
  }

  void CheckStart(const WaitingJob& job, const RanksByHost& start) {
    const uint64_t ranks = CountRanks(start);
    EXPECT_LE(ranks, job.placement.ranks);
    EXPECT_GE(ranks, MinRanks(job.placement)) << "a job starts with at least the ranks that it requires";
    const NamespaceRules& limits = RulesOf(rules_, job.pool);
    PoolUse& use = use_[job.pool];
    use.slots += ranks;
    ++use.running;
    EXPECT_LE(use.slots, limits.max_slots.value_or(UINT32_MAX));
    EXPECT_LE(use.running, limits.max_running.value_or(UINT32_MAX));
    for (const auto& [host, count] : start) {
      ASSERT_GE(free_[host], count) << "a slot has one rank";
      free_[host] -= count;
    }
    EXPECT_FALSE(large_waits_) << "nothing starts behind a job that has waited for long or preempts";
  }
  void CheckWait(const WaitingJob& job, const QueueOutcome& outcome) {
    EXPECT_NE(outcome.reason, "");
    EXPECT_NE(outcome.cause, WaitCause::kNone);
    for (const JobId& id : outcome.preempt) {
      EXPECT_TRUE(victims_.insert(id).second) << "no job is preempted twice";
      const auto victim = std::find_if(facts_.running.begin(), facts_.running.end(),
                                       [&](const RunningJob& running) { return running.id == id; });
      ASSERT_NE(victim, facts_.running.end());
      EXPECT_GE(job.priority, victim->priority + rules_.min_priority_difference);
      EXPECT_TRUE(rules_.preemption && victim->protection.empty() && !victim->ending);
      EXPECT_TRUE(RulesOf(rules_, victim->pool).preemptible);
    }
    PlacementFacts placement = job.placement;
    placement.hosts = hosts_;
    const bool fits_quota = DecideQuota(rules_, use_[job.pool], job).ranks > 0;
    const bool is_blocked = outcome.cause == WaitCause::kBehind;  // by the quota that is kept for another job
    if (job.waited >= rules_.overtake && CouldFit(placement) && fits_quota && !is_blocked) large_waits_ = true;
    if (!outcome.preempt.empty()) large_waits_ = true;
  }

  std::mt19937_64 random_;
  QueueRules rules_;
  std::vector<HostSlots> hosts_;
  QueueFacts facts_;
  std::map<std::string, PoolUse> use_;
  std::map<HostName, uint64_t> free_;
  std::set<JobId> victims_;
  bool large_waits_ = false;  // a job is ahead that has waited for long and could fit, or that preempts
};

// Every decision respects the slots, the quotas, the required ranks and the priorities, and is the same when it is
// repeated.
TEST(QueueWalks, EveryDecision_KeepsTheRules) {
  for (uint64_t seed = 1; seed <= 3'000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    QueueWalk(seed).Check();
  }
}

// Two namespaces that always have waiting jobs share the slots in proportion to their weights.
TEST(QueueWalks, SaturatedNamespaces_ShareSlotsByWeight) {
  QueueRules rules;
  rules.namespaces["a"].weight_milli = 3'000;
  rules.namespaces["b"].weight_milli = 1'000;
  std::mt19937_64 random(7);
  std::map<std::string, PoolUse> use;
  std::vector<std::pair<std::string, int>> running;  // the pool and the time that is left
  std::map<std::string, uint64_t> slot_time;
  uint64_t next = 1;
  for (int time = 0; time < 5'000; ++time) {
    std::erase_if(running, [&](auto& job) {
      if (--job.second > 0) return false;
      --use[job.first].slots;
      return true;
    });
    QueueFacts facts;
    facts.rules = &rules;
    std::vector<HostSlots> hosts = {MakeHost("h1", 16, 16 - static_cast<uint32_t>(running.size()))};
    facts.hosts = hosts;
    facts.use = use;
    for (int i = 0; i < 40; ++i) {
      facts.waiting.push_back(MakeWaiting(next++, 1, 50, i % 2 == 0 ? "a" : "b"));
      facts.waiting.back().waited = 10 * rules.overtake;
    }
    for (const QueueOutcome& outcome : DecideQueue(facts)) {
      if (!outcome.start.has_value()) continue;
      const std::string& pool = facts.waiting[outcome.waiting].pool;
      running.emplace_back(pool, static_cast<int>(1 + random() % 20));
      ++use[pool].slots;
    }
    for (const auto& [pool, of] : use) slot_time[pool] += of.slots;
  }
  EXPECT_NEAR(static_cast<double>(slot_time["a"]) / static_cast<double>(slot_time["b"]), 3, 0.3);
}

}  // namespace

}  // namespace trainyard
