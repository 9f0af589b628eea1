// The rules of the queue: order, quotas, reservations, preemption, forecasts, and a random walk over all of them.
#include "coordinator/policy/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"
#include "coordinator/policy/forecast.h"
#include "coordinator/policy/queue_quota.h"
#include "coordinator/policy/victims.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

HostSlots MakeHost(const std::string& name, uint32_t slots, uint32_t free) {
  HostSlots host;
  host.name = HostName(name);
  host.slots = slots;
  host.free = free;
  host.cores = host.free_cores = 64;
  return host;
}

WaitingJob MakeWaiting(uint64_t index, uint32_t ranks, uint32_t priority = 50, const std::string& pool = "default") {
  WaitingJob job;
  job.index = index;
  job.id = JobId(absl::StrCat("w", index));
  job.pool = pool;
  job.priority = priority;
  job.placement.ranks = ranks;
  return job;
}

RunningJob MakeRunning(const std::string& id, RanksByHost ranks, uint32_t priority, const std::string& pool = "default") {
  RunningJob job;
  job.id = JobId(id);
  job.pool = pool;
  job.priority = priority;
  job.ranks = std::move(ranks);
  job.began = absl::UnixEpoch();
  return job;
}

class QueuePolicy : public testing::Test {
 protected:
  QueuePolicy() { facts.rules = &rules; }

  std::vector<QueueOutcome> Decide() {
    facts.hosts = hosts;
    return DecideQueue(facts);
  }
  std::vector<std::string> Order() {
    facts.hosts = hosts;
    std::vector<std::string> ids;
    for (size_t index : OrderQueue(facts)) ids.push_back(facts.waiting[index].id.value());
    return ids;
  }
  std::vector<std::string> Started(const std::vector<QueueOutcome>& outcomes) {
    std::vector<std::string> ids;
    for (const QueueOutcome& outcome : outcomes) {
      if (outcome.start.has_value()) ids.push_back(facts.waiting[outcome.waiting].id.value());
    }
    return ids;
  }
  const QueueOutcome& Of(const std::vector<QueueOutcome>& outcomes, const std::string& id) {
    for (const QueueOutcome& outcome : outcomes) {
      if (facts.waiting[outcome.waiting].id.value() == id) return outcome;
    }
    ADD_FAILURE() << id;
    return outcomes.front();
  }

  QueueRules rules;
  std::vector<HostSlots> hosts;
  QueueFacts facts;
};

HostName H(const char* name) { return HostName(name); }

TEST_F(QueuePolicy, Order_IsByPriority_ThenBySubmission) {
  facts.waiting = {MakeWaiting(1, 1, 10), MakeWaiting(2, 1, 90), MakeWaiting(3, 1, 90), MakeWaiting(4, 1, 50)};

  EXPECT_THAT(Order(), ElementsAre("w2", "w3", "w4", "w1"));
}

TEST_F(QueuePolicy, Order_JobsThatContinueComeFirst) {
  facts.waiting = {MakeWaiting(1, 1, 90), MakeWaiting(2, 1, 10)};
  facts.waiting[1].continues = true;

  EXPECT_THAT(Order(), ElementsAre("w2", "w1"));
}

TEST_F(QueuePolicy, Order_NamespacesTakeTurns_InProportionToTheirWeights) {
  hosts = {MakeHost("h1", 100, 0)};
  rules.namespaces["a"].weight_milli = 2'000;
  for (uint64_t i = 1; i <= 6; ++i) facts.waiting.push_back(MakeWaiting(i, 1, 50, "a"));
  for (uint64_t i = 7; i <= 9; ++i) facts.waiting.push_back(MakeWaiting(i, 1, 50, "b"));

  EXPECT_THAT(Order(), ElementsAre("w1", "w7", "w2", "w3", "w8", "w4", "w5", "w9", "w6"));
}

TEST_F(QueuePolicy, Order_ANamespaceThatUsesLessComesFirst) {
  hosts = {MakeHost("h1", 10, 0)};
  facts.use["a"].slots = 6;
  facts.use["b"].slots = 2;
  facts.waiting = {MakeWaiting(1, 1, 50, "a"), MakeWaiting(2, 1, 50, "b")};

  EXPECT_THAT(Order(), ElementsAre("w2", "w1"));
}

TEST_F(QueuePolicy, Quota_OfSlots_IsNotExceeded_AndOthersStart) {
  hosts = {MakeHost("h1", 8, 8)};
  rules.namespaces["a"].max_slots = 3;
  facts.waiting = {MakeWaiting(1, 2, 50, "a"), MakeWaiting(2, 2, 50, "a"), MakeWaiting(3, 1, 50, "a"),
                   MakeWaiting(4, 4, 50, "b")};

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), UnorderedElementsAre("w1", "w3", "w4"));
  EXPECT_EQ(Of(outcomes, "w2").cause, WaitCause::kQuota);
  EXPECT_THAT(Of(outcomes, "w2").reason, HasSubstr("namespace a uses 2 of 3 slots"));
}

TEST_F(QueuePolicy, Quota_OfRunningJobsAndGpus) {
  hosts = {MakeHost("h1", 8, 8)};
  hosts[0].gpus = 8;
  rules.namespaces["a"].max_running = 1;
  rules.namespaces["b"].max_gpus = 2;
  facts.waiting = {MakeWaiting(1, 1, 50, "a"), MakeWaiting(2, 1, 50, "a"), MakeWaiting(3, 3, 50, "b"),
                   MakeWaiting(4, 3, 50, "b")};
  facts.waiting[2].wants_gpus = true;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), UnorderedElementsAre("w1", "w4"));
  EXPECT_THAT(Of(outcomes, "w2").reason, HasSubstr("1 job of namespace a runs, the limit"));
  EXPECT_THAT(Of(outcomes, "w3").reason, HasSubstr("can never start"));
}

TEST_F(QueuePolicy, Quota_AnElasticJobGetsWhatItLeaves) {
  hosts = {MakeHost("h1", 8, 8)};
  rules.namespaces["a"].max_slots = 5;
  facts.use["a"].slots = 2;
  facts.waiting = {MakeWaiting(1, 8, 50, "a")};
  facts.waiting[0].placement.min_ranks = 1;

  const auto outcomes = Decide();

  ASSERT_TRUE(outcomes[0].start.has_value());
  EXPECT_THAT(*outcomes[0].start, ElementsAre(std::make_pair(H("h1"), 3u)));
}

TEST_F(QueuePolicy, Quota_ThatWasLowered_DoesNotKeepAJobFromStartingAgain_NorLetsItGrow) {
  hosts = {MakeHost("h1", 8, 8)};
  rules.namespaces["a"].max_slots = 1;
  facts.use["a"] = {.slots = 4, .gpus = 0, .running = 1};
  facts.waiting = {MakeWaiting(1, 8, 50, "a"), MakeWaiting(2, 1, 50, "a")};
  facts.waiting[0].placement.min_ranks = 1;
  facts.waiting[0].continues = true;
  facts.waiting[0].had_ranks = 4;

  const auto outcomes = Decide();

  ASSERT_TRUE(Of(outcomes, "w1").start.has_value());
  EXPECT_THAT(*Of(outcomes, "w1").start, ElementsAre(std::make_pair(H("h1"), 4u)));
  EXPECT_EQ(Of(outcomes, "w2").cause, WaitCause::kQuota);
}

TEST_F(QueuePolicy, Quota_IsKeptForAJobThatHasWaitedForLong) {
  hosts = {MakeHost("h1", 8, 8)};
  rules.namespaces["a"].max_slots = 4;
  facts.use["a"].slots = 2;
  facts.waiting = {MakeWaiting(1, 4, 50, "a"), MakeWaiting(2, 1, 50, "a")};
  EXPECT_THAT(Started(Decide()), ElementsAre("w2"));
  facts.waiting[0].waited = rules.overtake;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), IsEmpty());
  EXPECT_EQ(Of(outcomes, "w2").cause, WaitCause::kBehind);
  EXPECT_THAT(Of(outcomes, "w2").waits_for, ElementsAre(JobId("w1")));
}

TEST_F(QueuePolicy, ALargeJob_IsOvertaken_UntilItHasWaitedForLong) {
  hosts = {MakeHost("h1", 4, 2), MakeHost("h2", 4, 0)};
  facts.waiting = {MakeWaiting(1, 6), MakeWaiting(2, 1)};
  EXPECT_THAT(Started(Decide()), ElementsAre("w2"));
  facts.waiting[0].waited = rules.overtake;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), IsEmpty());
  EXPECT_EQ(Of(outcomes, "w2").cause, WaitCause::kBehind);
  EXPECT_THAT(Of(outcomes, "w2").reason, HasSubstr("reserved for job w1, which has waited for 10m"));
}

TEST_F(QueuePolicy, AJobThatCouldNeverFit_ReservesNothing) {
  hosts = {MakeHost("h1", 4, 2)};
  facts.waiting = {MakeWaiting(1, 6), MakeWaiting(2, 1)};
  facts.waiting[0].waited = 10 * rules.overtake;

  EXPECT_THAT(Started(Decide()), ElementsAre("w2"));
}

TEST_F(QueuePolicy, WhileHostsConnect_NothingOvertakesAJobThatHasWaitedForLong) {
  hosts = {MakeHost("h1", 4, 2)};
  facts.settled = false;
  facts.waiting = {MakeWaiting(1, 6), MakeWaiting(2, 1)};
  facts.waiting[0].waited = rules.overtake;

  EXPECT_THAT(Started(Decide()), IsEmpty());
}

TEST_F(QueuePolicy, KeptSlots_AreFreeForTheirJobOnly) {
  hosts = {MakeHost("h1", 2, 0), MakeHost("h2", 2, 0)};
  facts.use["default"] = {.slots = 2, .gpus = 0, .running = 1};
  facts.waiting = {MakeWaiting(1, 1, 90), MakeWaiting(2, 2, 10)};
  facts.waiting[1].continues = facts.waiting[1].kept = true;
  facts.waiting[1].had_ranks = 2;
  facts.waiting[1].placement.previous = {H("h2"), H("h2")};

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), ElementsAre("w2"));
  EXPECT_THAT(*Of(outcomes, "w2").start, ElementsAre(std::make_pair(H("h2"), 2u)));
}

TEST_F(QueuePolicy, KeptSlots_ThatAStrayUses_AreNotFree) {
  hosts = {MakeHost("h1", 2, 0)};
  hosts[0].over = 1;  // two kept ranks and a stray trainer in two slots
  facts.waiting = {MakeWaiting(1, 2)};
  facts.waiting[0].continues = facts.waiting[0].kept = true;
  facts.waiting[0].had_ranks = 2;
  facts.waiting[0].placement.previous = {H("h1"), H("h1")};

  EXPECT_THAT(Started(Decide()), IsEmpty());
}

// ---- preemption -----------------------------------------------------------------------------------------------------

class Preemption : public QueuePolicy {
 protected:
  Preemption() { rules.preemption = true; }
};

TEST_F(Preemption, AJobOfAHigherPriority_PreemptsTheCheapestThatSuffices) {
  hosts = {MakeHost("h1", 4, 0), MakeHost("h2", 4, 0)};
  facts.running = {MakeRunning("big", {{H("h1"), 4}}, 10), MakeRunning("small", {{H("h2"), 2}}, 10),
                   MakeRunning("low", {{H("h2"), 1}}, 0), MakeRunning("unsaved", {{H("h2"), 1}}, 10)};
  facts.running[3].unsaved_ms = 1'000'000;
  facts.waiting = {MakeWaiting(1, 2, 90)};

  const auto outcomes = Decide();

  EXPECT_EQ(outcomes[0].cause, WaitCause::kPreemption);
  EXPECT_THAT(outcomes[0].preempt, ElementsAre(JobId("small")));
}

TEST_F(Preemption, OfEqualCost_TheYoungestIsChosen) {
  hosts = {MakeHost("h1", 2, 0)};
  facts.running = {MakeRunning("old", {{H("h1"), 1}}, 10), MakeRunning("young", {{H("h1"), 1}}, 10)};
  facts.running[1].began += absl::Minutes(5);
  facts.waiting = {MakeWaiting(1, 1, 90)};

  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("young")));
}

TEST_F(Preemption, SeveralJobs_AreTheFewest_AndNoneIsUnneeded) {
  hosts = {MakeHost("h1", 4, 0), MakeHost("h2", 4, 1)};
  facts.running = {MakeRunning("one", {{H("h1"), 1}}, 0), MakeRunning("three", {{H("h1"), 3}}, 10),
                   MakeRunning("two", {{H("h2"), 2}}, 10), MakeRunning("other", {{H("h2"), 1}}, 10)};
  facts.waiting = {MakeWaiting(1, 6, 90)};

  EXPECT_THAT(Decide()[0].preempt, UnorderedElementsAre(JobId("three"), JobId("two")));
}

TEST_F(Preemption, TooLittleToGain_PreemptsNone) {
  hosts = {MakeHost("h1", 4, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 2}}, 10), MakeRunning("b", {{H("h1"), 2}}, 60)};
  facts.waiting = {MakeWaiting(1, 3, 60)};

  const auto outcomes = Decide();

  EXPECT_THAT(outcomes[0].preempt, IsEmpty());
  EXPECT_EQ(outcomes[0].cause, WaitCause::kSlots);
}

TEST_F(Preemption, NeverForTheSamePriority_NorBelowTheMinimalDifference) {
  hosts = {MakeHost("h1", 1, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 1}}, 50)};
  facts.waiting = {MakeWaiting(1, 1, 50)};
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
  rules.min_priority_difference = 20;
  facts.waiting = {MakeWaiting(1, 1, 69)};
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
  facts.waiting = {MakeWaiting(1, 1, 70)};
  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("a")));
}

TEST_F(Preemption, NamespacesAndProtections_AreRespected_AndNamed) {
  hosts = {MakeHost("h1", 2, 0)};
  rules.namespaces["safe"].preemptible = false;
  rules.namespaces["meek"].preempts = false;
  facts.running = {MakeRunning("a", {{H("h1"), 1}}, 0, "safe"), MakeRunning("b", {{H("h1"), 1}}, 0)};
  facts.running[1].protection = "job b is protected for 2m";
  facts.waiting = {MakeWaiting(1, 1, 90)};

  const auto outcomes = Decide();

  EXPECT_THAT(outcomes[0].preempt, IsEmpty());
  EXPECT_THAT(outcomes[0].reason, HasSubstr("job b is protected for 2m"));
  facts.running[1].protection = "";
  facts.waiting[0].pool = "meek";
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
}

TEST_F(Preemption, WhatIsEndingAnyway_IsNotPreemptedInAddition) {
  hosts = {MakeHost("h1", 2, 0)};
  facts.running = {MakeRunning("ending", {{H("h1"), 1}}, 0), MakeRunning("b", {{H("h1"), 1}}, 0)};
  facts.running[0].ending = true;
  facts.waiting = {MakeWaiting(1, 1, 90), MakeWaiting(2, 1, 10)};
  facts.waiting[0].is_preempting = true;

  const auto outcomes = Decide();

  EXPECT_THAT(outcomes[0].preempt, IsEmpty());
  EXPECT_EQ(outcomes[0].cause, WaitCause::kPreemption);
}

TEST_F(Preemption, FreedSlots_AreKeptForThePreemptor) {
  hosts = {MakeHost("h1", 4, 2)};
  facts.running = {MakeRunning("ending", {{H("h1"), 2}}, 0)};
  facts.running[0].ending = true;
  facts.waiting = {MakeWaiting(1, 4, 90), MakeWaiting(2, 1, 10)};
  facts.waiting[0].is_preempting = true;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), IsEmpty());
  EXPECT_EQ(Of(outcomes, "w2").cause, WaitCause::kBehind);
}

TEST_F(Preemption, TwoPreemptors_DoNotCountTheSameSlots) {
  hosts = {MakeHost("h1", 2, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 1}}, 0), MakeRunning("b", {{H("h1"), 1}}, 10)};
  facts.waiting = {MakeWaiting(1, 1, 90), MakeWaiting(2, 1, 80)};

  const auto outcomes = Decide();

  EXPECT_THAT(Of(outcomes, "w1").preempt, ElementsAre(JobId("a")));
  EXPECT_THAT(Of(outcomes, "w2").preempt, ElementsAre(JobId("b")));
}

TEST_F(Preemption, WithinItsQuota_AJobPreemptsJobsOfItsOwnNamespace) {
  hosts = {MakeHost("h1", 8, 4)};
  rules.namespaces["a"].max_slots = 2;
  facts.use["a"] = {.slots = 2, .gpus = 0, .running = 1};
  facts.running = {MakeRunning("other", {{H("h1"), 2}}, 0, "b"), MakeRunning("own", {{H("h1"), 2}}, 10, "a")};
  facts.waiting = {MakeWaiting(1, 2, 90, "a")};

  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("own")));
}

TEST_F(Preemption, OnlyHostsThatTheJobMayUse_Count) {
  hosts = {MakeHost("h1", 2, 0), MakeHost("h2", 2, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 2}}, 0), MakeRunning("b", {{H("h2"), 2}}, 20)};
  facts.waiting = {MakeWaiting(1, 1, 90)};
  facts.waiting[0].placement.allowed = {"h2"};

  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("b")));
}

TEST_F(Preemption, AGroupOnOneHost_GetsTheVictimsOfThatHost) {
  hosts = {MakeHost("h1", 4, 0), MakeHost("h2", 4, 2)};
  facts.running = {MakeRunning("a", {{H("h1"), 2}}, 0), MakeRunning("b", {{H("h1"), 2}}, 0),
                   MakeRunning("c", {{H("h2"), 2}}, 10)};
  facts.waiting = {MakeWaiting(1, 4, 90)};
  facts.waiting[0].placement.group = 4;

  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("c")));
}

TEST_F(Preemption, BeforeHostsAreKnown_AndInAPartOfTheQueue_NoneIsPreempted) {
  hosts = {MakeHost("h1", 1, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 1}}, 0)};
  facts.waiting = {MakeWaiting(1, 1, 90)};
  facts.settled = false;
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
  facts.settled = true;
  facts.may_preempt = false;
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
}

// ---- a random walk --------------------------------------------------------------------------------------------------

struct Walk {
  std::mt19937_64 random;
  uint64_t Below(uint64_t n) { return random() % n; }
};

uint64_t RanksOf(const RanksByHost& ranks) {
  uint64_t sum = 0;
  for (const auto& [host, count] : ranks) sum += count;
  return sum;
}

// Every decision respects the slots, the quotas, the gangs and the priorities, and is the same when it is repeated.
TEST(QueueWalk, EveryDecision_KeepsTheRules) {
  for (uint64_t seed = 1; seed <= 3'000; ++seed) {
    Walk walk{std::mt19937_64(seed)};
    QueueRules rules;
    rules.preemption = walk.Below(2) == 0;
    rules.min_priority_difference = static_cast<uint32_t>(1 + walk.Below(30));
    const char* kPools[] = {"a", "b", "c"};
    for (const char* pool : kPools) {
      if (walk.Below(2) == 0) rules.namespaces[pool].max_slots = static_cast<uint32_t>(walk.Below(10));
      if (walk.Below(4) == 0) rules.namespaces[pool].max_running = static_cast<uint32_t>(walk.Below(4));
      rules.namespaces[pool].preemptible = walk.Below(5) != 0;
    }
    std::vector<HostSlots> hosts;
    QueueFacts facts;
    facts.rules = &rules;
    std::map<HostName, uint64_t> used;
    for (uint64_t h = 0; h <= walk.Below(4); ++h) {
      hosts.push_back(MakeHost(absl::StrCat("h", h), static_cast<uint32_t>(1 + walk.Below(6)), 0));
      hosts.back().free = hosts.back().slots;
    }
    for (uint64_t r = walk.Below(6); r > 0; --r) {
      HostSlots& host = hosts[walk.Below(hosts.size())];
      if (host.free == 0) continue;
      const uint32_t ranks = static_cast<uint32_t>(1 + walk.Below(host.free));
      host.free -= ranks;
      RunningJob job = MakeRunning(absl::StrCat("r", r), {{host.name, ranks}}, static_cast<uint32_t>(walk.Below(101)),
                                   kPools[walk.Below(3)]);
      job.ending = walk.Below(5) == 0;
      if (walk.Below(4) == 0) job.protection = "it is protected";
      job.unsaved_ms = walk.Below(100'000);
      facts.use[job.pool].slots += ranks;
      ++facts.use[job.pool].running;
      facts.running.push_back(std::move(job));
    }
    for (uint64_t w = 1; w <= 1 + walk.Below(8); ++w) {
      WaitingJob job = MakeWaiting(w, static_cast<uint32_t>(1 + walk.Below(6)), static_cast<uint32_t>(walk.Below(101)),
                                   kPools[walk.Below(3)]);
      if (walk.Below(4) == 0) job.placement.min_ranks = static_cast<uint32_t>(1 + walk.Below(job.placement.ranks));
      if (walk.Below(3) == 0) job.waited = rules.overtake;
      facts.waiting.push_back(std::move(job));
    }
    facts.hosts = hosts;

    const std::vector<QueueOutcome> outcomes = DecideQueue(facts);

    ASSERT_EQ(outcomes.size(), facts.waiting.size()) << "seed " << seed;
    std::map<std::string, PoolUse> use = facts.use;
    std::map<std::string, uint64_t> free;
    for (const HostSlots& host : hosts) free[host.name.value()] = host.free;
    std::set<JobId> victims;
    bool large_waits = false;  // a job that has waited for long, and could fit, is ahead
    for (const QueueOutcome& outcome : outcomes) {
      const WaitingJob& job = facts.waiting[outcome.waiting];
      const NamespaceRules& limits = RulesOf(rules, job.pool);
      if (outcome.start.has_value()) {
        const uint64_t ranks = RanksOf(*outcome.start);
        EXPECT_LE(ranks, job.placement.ranks) << "seed " << seed;
        EXPECT_GE(ranks, MinRanks(job.placement)) << "seed " << seed << ": a gang starts whole";
        use[job.pool].slots += ranks;
        ++use[job.pool].running;
        if (limits.max_slots) EXPECT_LE(use[job.pool].slots, *limits.max_slots) << "seed " << seed;
        if (limits.max_running) EXPECT_LE(use[job.pool].running, *limits.max_running) << "seed " << seed;
        for (const auto& [host, count] : *outcome.start) {
          ASSERT_GE(free[host.value()], count) << "seed " << seed << ": a slot has one rank";
          free[host.value()] -= count;
        }
        EXPECT_FALSE(large_waits) << "seed " << seed << ": nothing starts behind a job that has waited for long";
        continue;
      }
      EXPECT_NE(outcome.reason, "") << "seed " << seed;
      EXPECT_NE(outcome.cause, WaitCause::kNone) << "seed " << seed;
      uint64_t gained = 0;
      for (const JobId& id : outcome.preempt) {
        EXPECT_TRUE(victims.insert(id).second) << "seed " << seed << ": no job is preempted twice";
        const auto victim = std::find_if(facts.running.begin(), facts.running.end(),
                                         [&](const RunningJob& running) { return running.id == id; });
        ASSERT_NE(victim, facts.running.end());
        EXPECT_GE(job.priority, victim->priority + rules.min_priority_difference) << "seed " << seed;
        EXPECT_TRUE(rules.preemption && victim->protection.empty() && !victim->ending) << "seed " << seed;
        EXPECT_TRUE(RulesOf(rules, victim->pool).preemptible) << "seed " << seed;
        gained += RanksOf(victim->ranks);
      }
      PlacementFacts placement = job.placement;
      placement.hosts = hosts;
      const bool fits_quota = DecideQuota(rules, use[job.pool], job).ranks > 0;
      const bool is_blocked = outcome.cause == WaitCause::kBehind;  // by the quota that is kept for another job
      if (job.waited >= rules.overtake && CouldFit(placement) && fits_quota && !is_blocked) large_waits = true;
      if (!outcome.preempt.empty()) large_waits = true;
    }
    const std::vector<QueueOutcome> again = DecideQueue(facts);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      EXPECT_EQ(again[i].start, outcomes[i].start) << "seed " << seed;
      EXPECT_EQ(again[i].preempt, outcomes[i].preempt) << "seed " << seed;
      EXPECT_EQ(again[i].reason, outcomes[i].reason) << "seed " << seed;
    }
  }
}

// Two namespaces that always have waiting jobs share the slots in proportion to their weights.
TEST(QueueWalk, SaturatedNamespaces_ShareSlotsByWeight) {
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

// ---- submissions and the configuration -------------------------------------------------------------------------------

TEST(Submission, WhatCanNeverStart_IsRefusedWithAllProblems) {
  QueueRules rules;
  rules.only_listed = false;
  rules.namespaces["a"].max_slots = 4;
  rules.namespaces["a"].max_gpus = 2;
  rules.namespaces["a"].max_priority = 60;

  const absl::Status status = CheckSubmission(rules, {.name = "a", .priority = 90, .min_ranks = 8, .needs_gpu = true});

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("priority 90 is above 60"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 8 slots, and namespace a may use 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 8 GPUs, and namespace a may use 2"));
}

TEST(Submission, LimitsOfWaitingJobs_AreExhausted) {
  QueueRules rules;
  rules.max_queued = 10;
  rules.namespaces["a"].max_queued = 2;
  EXPECT_TRUE(CheckSubmission(rules, {.name = "a", .queued = 9, .queued_in_pool = 1}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(CheckSubmission(rules, {.name = "b", .queued = 10})));
  EXPECT_TRUE(absl::IsResourceExhausted(CheckSubmission(rules, {.name = "a", .queued = 9, .queued_in_pool = 2})));
  EXPECT_TRUE(absl::IsResourceExhausted(
      CheckSubmission(rules, {.name = "b", .is_new_namespace = true, .namespaces = kNamespacesMax})));
}

TEST(Submission, UnlistedNamespaces_ShareTheEntryForAllOthers) {
  QueueRules rules;
  EXPECT_EQ(PoolOf(rules, "x"), "x");
  rules.namespaces["*"].max_slots = 2;
  rules.namespaces["a"];
  EXPECT_EQ(PoolOf(rules, "x"), "*");
  EXPECT_EQ(PoolOf(rules, "y"), "*");
  EXPECT_EQ(PoolOf(rules, "a"), "a");
  EXPECT_FALSE(CheckSubmission(rules, {.name = "x", .min_ranks = 3}).ok());
}

std::string ProblemsOf(const std::string& yaml) {
  v1::CoordinatorConfig config;
  Problems problems;
  ReadYaml({.text = yaml, .file_name = "c.yaml", .working_directory = "/"}, &config, &problems);
  ApplyDefaults(&config);
  CheckRules(config, {}, &problems);
  CheckQueueConfig(config.queue(), &problems);
  return std::string(problems.ToStatus().message());
}

TEST(QueueConfig, IsReadWithItsDefaults) {
  v1::CoordinatorConfig config;
  Problems problems;
  ReadYaml({.text = "queue: {namespaces: [{name: a, weight: 2.5, max_slots: 4}, {name: \"*\"}]}",
            .file_name = "c.yaml",
            .working_directory = "/"},
           &config, &problems);
  ApplyDefaults(&config);
  CheckQueueConfig(config.queue(), &problems);
  ASSERT_TRUE(problems.ok()) << problems.ToStatus();

  const QueueRules rules = MakeQueueRules(config.queue());

  EXPECT_EQ(rules.namespaces.at("a").weight_milli, 2'500u);
  EXPECT_EQ(rules.namespaces.at("a").max_slots, 4u);
  EXPECT_FALSE(rules.namespaces.at("*").max_slots.has_value());
  EXPECT_EQ(rules.namespaces.at("*").max_priority, 100u);
  EXPECT_TRUE(rules.namespaces.at("*").preempts);
  EXPECT_FALSE(rules.preemption);
  EXPECT_EQ(rules.overtake, absl::Minutes(10));
}

TEST(QueueConfig, AllProblemsAreReportedTogether) {
  const std::string problems = ProblemsOf(
      "queue:\n  only_listed: true\n  overtake_s: -1\n  namespaces:\n    - {name: A b}\n    - {name: a, weight: 0}\n"
      "    - {name: a, wieght: 1}\n    - {name: \"*\"}\n    - {max_slots: 1}\n    - 7\n"
      "  preemption: {min_priority_difference: 0}\n");

  EXPECT_THAT(problems, HasSubstr("queue.overtake_s: must be from 0"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[0].name: must consist of"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[1].weight: must be from 0.001"));
  EXPECT_THAT(problems, HasSubstr("did you mean 'weight'"));
  EXPECT_THAT(problems, HasSubstr("names 'a' a second time"));
  EXPECT_THAT(problems, HasSubstr("queue.only_listed"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[4].name: is required"));
  EXPECT_THAT(problems, HasSubstr("queue.namespaces[5]: expected a map"));
  EXPECT_THAT(problems, HasSubstr("queue.preemption.min_priority_difference: must be from 1"));
}

// ---- forecasts ------------------------------------------------------------------------------------------------------

TEST(ForecastOfQueue, FollowsTheKnownEnds_InTheOrderOfTheQueue) {
  QueueRules rules;
  std::vector<HostSlots> hosts = {MakeHost("h1", 4, 0)};
  const WaitingJob first = MakeWaiting(1, 2), second = MakeWaiting(2, 4), third = MakeWaiting(3, 1);
  ForecastFacts facts{.rules = &rules, .hosts = hosts, .use = {}, .running = {}, .waiting = {}};
  facts.running = {{.id = JobId("a"), .pool = "default", .ranks = {{H("h1"), 2}}, .ends_in = absl::Seconds(10)},
                   {.id = JobId("b"), .pool = "default", .ranks = {{H("h1"), 2}}, .ends_in = absl::Seconds(60)}};
  facts.waiting = {{.job = &first, .lasts = absl::Seconds(100)}, {.job = &second, .lasts = std::nullopt},
                   {.job = &third, .lasts = absl::Seconds(1)}};

  const std::vector<Forecast> forecasts = MakeForecasts(facts);

  ASSERT_EQ(forecasts.size(), 3u);
  EXPECT_EQ(forecasts[0].start_in, absl::Seconds(10));
  EXPECT_EQ(forecasts[0].text, "when job a ends");
  EXPECT_EQ(forecasts[1].start_in, absl::Seconds(110));
  EXPECT_EQ(forecasts[2].start_in, absl::Seconds(60));
}

TEST(ForecastOfQueue, IsUnknown_WithTheReason) {
  QueueRules rules;
  rules.namespaces["small"].max_slots = 1;
  std::vector<HostSlots> hosts = {MakeHost("h1", 2, 0)};
  const WaitingJob first = MakeWaiting(1, 2), large = MakeWaiting(2, 9), never = MakeWaiting(3, 2, 50, "small");
  ForecastFacts facts{.rules = &rules, .hosts = hosts, .use = {}, .running = {}, .waiting = {}};
  facts.running = {{.id = JobId("a"),
                    .pool = "default",
                    .ranks = {{H("h1"), 2}},
                    .ends_in = std::nullopt,
                    .why_unknown = "job a has made no step yet"}};
  facts.waiting = {{.job = &first, .lasts = std::nullopt},
                   {.job = &large, .lasts = std::nullopt},
                   {.job = &never, .lasts = std::nullopt, .never = true}};

  const std::vector<Forecast> forecasts = MakeForecasts(facts);

  EXPECT_EQ(forecasts[0].text, "unknown: job a has made no step yet");
  EXPECT_THAT(forecasts[1].text, HasSubstr("attached hosts are not enough"));
  EXPECT_THAT(forecasts[2].text, HasSubstr("never"));
}

}  // namespace
}  // namespace trainyard
