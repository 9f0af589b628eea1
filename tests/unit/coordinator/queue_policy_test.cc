// The rules of the queue: order, quotas, reservations and preemption.
#include "coordinator/policy/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/queue_quota.h"
#include "coordinator/policy/victims.h"
#include "tests/unit/coordinator/queue_jobs.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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
    ADD_FAILURE() << "there is no outcome of job " << id;
    return outcomes.front();
  }

  QueueRules rules;
  std::vector<HostSlots> hosts;
  QueueFacts facts;
};

TEST_F(QueuePolicy, Reasons_AreGivenToAPageOfTheJobsThatWantOne) {
  hosts = {MakeHost("h1", 1, 0)};
  for (uint64_t i = 1; i <= 5; ++i) facts.waiting.push_back(MakeWaiting(i, 1));
  facts.waiting[0].wants_reason = facts.waiting[2].wants_reason = false;
  facts.reasons = 1;
  facts.reasons_skipped = 1;

  const std::vector<QueueOutcome> outcomes = Decide();

  for (const char* job : {"w1", "w2", "w3", "w5"}) EXPECT_EQ(Of(outcomes, job).reason, "") << job;
  EXPECT_THAT(Of(outcomes, "w4").reason, HasSubstr("waits for slots"));
  EXPECT_EQ(Of(outcomes, "w5").cause, WaitCause::kSlots);
}

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

TEST_F(QueuePolicy, Quota_OfRunningJobsAndGpus_IsNotExceeded) {
  hosts = {MakeHost("h1", 8, 8)};
  hosts[0].gpus = 8;
  rules.namespaces["a"].max_running = 1;
  rules.namespaces["b"].max_gpus = 2;
  facts.waiting = {MakeWaiting(1, 1, 50, "a"), MakeWaiting(2, 1, 50, "a"), MakeWaiting(3, 3, 50, "b"),
                   MakeWaiting(4, 3, 50, "b")};
  facts.waiting[2].wants_gpus = true;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), UnorderedElementsAre("w1", "w4"));
  EXPECT_THAT(Of(outcomes, "w2").reason, HasSubstr("1 job of namespace a runs, and the limit is 1"));
  EXPECT_EQ(Of(outcomes, "w3").reason,
            "waits for its quota: namespace b uses 0 of 2 GPUs (queue.namespaces.max_gpus), and the job needs 3, as "
            "resources.device of the job is not cpu: it can never start");
}

TEST_F(QueuePolicy, Quota_LimitsHowManyRanksAnElasticJobGets) {
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

TEST_F(QueuePolicy, Quota_IsReservedForAJobThatHasWaitedForLong) {
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

TEST_F(QueuePolicy, AJobThatNeedsOneVersion_ReservesTheHostsOfVersionsThatSuffice) {
  hosts = {MakeHost("h1", 4, 3), MakeHost("h2", 2, 2)};
  hosts[0].version = "0.1.0";
  hosts[1].version = "0.2.0";
  facts.waiting = {MakeWaiting(1, 4), MakeWaiting(2, 2), MakeWaiting(3, 2)};
  for (WaitingJob& job : facts.waiting) job.placement.one_version = true;
  facts.waiting[0].waited = rules.overtake;

  const auto outcomes = Decide();

  EXPECT_THAT(Started(outcomes), ElementsAre("w2"));
  EXPECT_THAT(*Of(outcomes, "w2").start, ElementsAre(std::make_pair(H("h2"), 2u)));
  EXPECT_EQ(Of(outcomes, "w3").cause, WaitCause::kBehind);
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
  facts.waiting[1].continues = true;
  facts.waiting[1].kept = {{H("h2"), 2}};
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
  facts.waiting[0].continues = true;
  facts.waiting[0].kept = {{H("h1"), 2}};
  facts.waiting[0].had_ranks = 2;
  facts.waiting[0].placement.previous = {H("h1"), H("h1")};

  EXPECT_THAT(Started(Decide()), IsEmpty());
}

// ---- preemption -----------------------------------------------------------------------------------------------------

class Preemption : public QueuePolicy {
 protected:
  Preemption() { rules.preemption = true; }
};

TEST_F(Preemption, AJobOfAHigherPriority_PreemptsTheCheapestJobThatSuffices) {
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

TEST_F(Preemption, OfSeveralJobs_TakesTheFewestThatSuffice) {
  hosts = {MakeHost("h1", 4, 0), MakeHost("h2", 4, 1)};
  facts.running = {MakeRunning("one", {{H("h1"), 1}}, 0), MakeRunning("three", {{H("h1"), 3}}, 10),
                   MakeRunning("two", {{H("h2"), 2}}, 10), MakeRunning("other", {{H("h2"), 1}}, 10)};
  facts.waiting = {MakeWaiting(1, 6, 90)};

  EXPECT_THAT(Decide()[0].preempt, UnorderedElementsAre(JobId("three"), JobId("two")));
}

TEST_F(Preemption, RanksBeyondTheSlotsOfTheirHost_FreeNoSlots) {
  hosts = {MakeHost("h1", 2, 0), MakeHost("h2", 2, 0)};
  hosts[0].over = 2;  // the daemon of h1 came back with two slots instead of four
  facts.running = {MakeRunning("a", {{H("h1"), 2}}, 0), MakeRunning("b", {{H("h1"), 2}}, 0),
                   MakeRunning("c", {{H("h2"), 2}}, 10)};
  facts.waiting = {MakeWaiting(1, 2, 90)};

  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("c")));
}

TEST_F(Preemption, IfItWouldFreeTooFewSlots_NoJobIsPreempted) {
  hosts = {MakeHost("h1", 4, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 2}}, 10), MakeRunning("b", {{H("h1"), 2}}, 60)};
  facts.waiting = {MakeWaiting(1, 3, 60)};

  const auto outcomes = Decide();

  EXPECT_THAT(outcomes[0].preempt, IsEmpty());
  EXPECT_EQ(outcomes[0].cause, WaitCause::kSlots);
}

TEST_F(Preemption, DoesNotHappenForTheSamePriority_NorBelowTheMinimalDifference) {
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

TEST_F(Preemption, IfAnEndingJobFreesEnoughSlots_NoOtherJobIsPreempted) {
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

// Regression: when the first rank of a preempted job had ended, its slot still counted against the quota of its
// namespace, so a second job was preempted.
TEST_F(Preemption, WithinItsQuota_AJobThatHasEndedInPart_LeavesItsWholeShare) {
  hosts = {MakeHost("h1", 8, 5)};
  rules.namespaces["a"].max_slots = 4;
  facts.use["a"] = {.slots = 4, .gpus = 0, .running = 2};
  facts.running = {MakeRunning("ending", {{H("h1"), 1}}, 0, "a"), MakeRunning("b", {{H("h1"), 2}}, 0, "a")};
  facts.running[0].ending = true;
  facts.running[0].use.slots = 2;
  facts.waiting = {MakeWaiting(1, 2, 90, "a")};
  facts.waiting[0].is_preempting = true;

  const auto outcomes = Decide();

  EXPECT_THAT(outcomes[0].preempt, IsEmpty());
  EXPECT_EQ(outcomes[0].cause, WaitCause::kPreemption);
}

TEST_F(Preemption, JobsOnHostsThatThePreemptorMayNotUse_AreNotPreempted) {
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

TEST_F(Preemption, AJobThatNeedsOneVersion_PreemptsJobsOnHostsOfOneVersion) {
  hosts = {MakeHost("h1", 2, 0), MakeHost("h2", 2, 0), MakeHost("h3", 2, 1)};
  hosts[0].version = hosts[1].version = "0.1.0";
  hosts[2].version = "0.2.0";
  facts.running = {MakeRunning("new", {{H("h3"), 1}}, 0), MakeRunning("a", {{H("h1"), 2}}, 10),
                   MakeRunning("b", {{H("h2"), 2}}, 10)};
  facts.waiting = {MakeWaiting(1, 4, 90)};
  facts.waiting[0].placement.one_version = true;

  EXPECT_THAT(Decide()[0].preempt, UnorderedElementsAre(JobId("a"), JobId("b")));

  facts.waiting[0] = MakeWaiting(1, 2, 90);
  facts.waiting[0].placement.one_version = true;
  EXPECT_THAT(Decide()[0].preempt, ElementsAre(JobId("new")))
      << "one job suffices in each version; this one is cheaper";

  facts.waiting[0] = MakeWaiting(1, 5, 90);
  facts.waiting[0].placement.one_version = true;
  EXPECT_THAT(Decide()[0].preempt, IsEmpty()) << "no version has so many slots";
}

TEST_F(Preemption, BeforeHostsAreKnown_OrWithoutPermission_NoJobIsPreempted) {
  hosts = {MakeHost("h1", 1, 0)};
  facts.running = {MakeRunning("a", {{H("h1"), 1}}, 0)};
  facts.waiting = {MakeWaiting(1, 1, 90)};
  facts.settled = false;
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
  facts.settled = true;
  facts.may_preempt = false;
  EXPECT_THAT(Decide()[0].preempt, IsEmpty());
}

}  // namespace
}  // namespace trainyard
