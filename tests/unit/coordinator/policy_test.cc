// The coordinator's policies as tables: facts in, decision and reason out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "coordinator/policy/health.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/recovery.h"
#include "coordinator/policy/rendezvous.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

HostSlots Slots(const char* name, uint32_t slots, uint32_t free, uint32_t gpus = 0) {
  return {.name = HostName(name), .slots = slots, .free = free, .gpus = gpus};
}

std::string Print(const PlacementDecision& decision) {
  std::string text;
  if (!decision.ranks_by_host.has_value()) return decision.reason;
  for (const auto& [host, count] : *decision.ranks_by_host) text += host.value() + "=" + std::to_string(count) + " ";
  return text;
}

TEST(Placement, IsAllOrNothing_InNameOrder_AndSaysWhatIsMissing) {
  struct Case {
    uint32_t ranks;
    std::vector<HostSlots> hosts;
    std::vector<HostName> previous;
    std::string expected;
  };
  const Case cases[] = {
      {2, {Slots("a", 2, 2)}, {}, "a=2 "},
      {3, {Slots("a", 2, 2), Slots("b", 4, 4)}, {}, "a=2 b=1 "},
      {3, {Slots("a", 2, 0), Slots("b", 4, 4)}, {}, "b=3 "},
      {1, {}, {}, "waits for slots: 1 rank asked, no host is attached; start trainyard-worker on one"},
      {4, {Slots("w1", 2, 2)}, {}, "waits for slots: 4 ranks asked, 2 of 2 slots free on 1 host (w1)"},
      {5,
       {Slots("a", 1, 1), Slots("b", 1, 1), Slots("c", 1, 0), Slots("d", 1, 1)},
       {},
       "waits for slots: 5 ranks asked, 3 of 4 slots free on 4 hosts (a, b, c and 1 more)"},
      // A host that had ranks keeps them, though another comes first by name.
      {2, {Slots("a", 2, 2), Slots("b", 2, 2)}, {HostName("b"), HostName("b")}, "b=2 "},
      {2, {Slots("a", 2, 2), Slots("b", 2, 1)}, {HostName("b"), HostName("b")}, "a=1 b=1 "},
  };
  for (const Case& c : cases) {
    PlacementDecision decision =
        DecidePlacement({.ranks = c.ranks, .needs_gpu = false, .hosts = c.hosts, .previous = c.previous});
    EXPECT_EQ(Print(decision), c.expected);
  }
}

TEST(Placement, OnGpus_CountsThem_AndSaysWhenThereAreNone) {
  const HostSlots hosts[] = {Slots("a", 4, 4, 0), Slots("b", 4, 4, 2)};
  EXPECT_EQ(Print(DecidePlacement({.ranks = 2, .needs_gpu = true, .hosts = hosts, .previous = {}})), "b=2 ");
  EXPECT_THAT(Print(DecidePlacement({.ranks = 3, .needs_gpu = true, .hosts = hosts, .previous = {}})),
              HasSubstr("2 GPUs on 2 hosts"));
}

TEST(Rendezvous, RanksStayWithTheirHosts_OverGenerations) {
  HostName a("a"), b("b"), c("c");
  auto hosts = [](const std::vector<RankPlace>& places) {
    std::string text;
    for (const RankPlace& place : places) text += place.host.value() + std::to_string(place.local_rank);
    return text;
  };
  EXPECT_EQ(hosts(AssignRanks({{a, 2}, {b, 1}}, {})), "a0a1b0");
  EXPECT_EQ(hosts(AssignRanks({{a, 2}, {c, 1}}, {a, b, a})), "a0c0a1") << "rank 1 moved, the others stayed";
  EXPECT_EQ(hosts(AssignRanks({{b, 3}}, {a, b, a})), "b0b1b2");
  EXPECT_EQ(AssignRanks({{a, 2}}, {})[1].local_world_size, 2u);
}

TEST(Health, LeaseDecides_NotTheStream) {
  absl::Time now = absl::FromUnixSeconds(100);
  HostFacts facts{.attached = true, .last_heard = now - absl::Seconds(3), .lease = absl::Seconds(3)};
  EXPECT_TRUE(JudgeHost(now, facts).reachable);
  facts.last_heard -= absl::Milliseconds(200);
  EXPECT_FALSE(JudgeHost(now, facts).reachable);
  EXPECT_EQ(JudgeHost(now, facts).reason, "not heard of for 3.2s (lease 3s)");
  facts = {.attached = false, .last_heard = now, .lease = absl::Seconds(3)};
  EXPECT_TRUE(JudgeHost(now, facts).reachable);
  facts.last_heard = now + absl::Seconds(1);
  EXPECT_TRUE(JudgeHost(now, facts).reachable) << "heard of after the event was made";
}

TEST(Lifecycle, TableIsClosed_DeterministicAndReachable) {
  std::set<std::pair<int, int>> seen;
  std::set<v1::JobState> reached = {v1::JOB_STATE_QUEUED};
  for (const Transition& transition : LifecycleTable()) {
    EXPECT_TRUE(seen.insert({transition.from, static_cast<int>(transition.event)}).second) << "twice in the table";
    EXPECT_FALSE(IsFinal(transition.from)) << "nothing leads out of a final state";
    reached.insert(transition.to);
  }
  EXPECT_EQ(reached.size(), 9u) << "every state is reached";
  EXPECT_EQ(NextState(v1::JOB_STATE_QUEUED, LifecycleEvent::kAllReady), std::nullopt);
  EXPECT_THAT(PrintLifecycle(), HasSubstr("| STARTING | all_ready | RUNNING |"));
}

TEST(Recovery, ExitsAreJudged) {
  struct Case {
    v1::TrainerExited::Cause cause;
    int number;
    bool finished;
    bool desired;
    const char* expected;  // empty: no failure
  };
  const Case cases[] = {
      {v1::TrainerExited::CAUSE_EXIT, 0, true, true, ""},
      {v1::TrainerExited::CAUSE_EXIT, 0, false, false, ""},
      {v1::TrainerExited::CAUSE_EXIT, 0, false, true, "rank 1 on w1 exited with code 0 before its steps were made"},
      {v1::TrainerExited::CAUSE_EXIT, 1, false, true, "rank 1 on w1 exited with code 1"},
      {v1::TrainerExited::CAUSE_EXIT, 2, false, true, "rank 1 on w1 refused the job (exit code 2)"},
      {v1::TrainerExited::CAUSE_EXIT, 3, false, true, "rank 1 on w1 left: its group was aborted"},
      {v1::TrainerExited::CAUSE_EXIT, 127, false, true, "rank 1 on w1 could not be run (exit code 127)"},
      {v1::TrainerExited::CAUSE_SIGNAL, 9, false, true, "rank 1 on w1 was killed by signal 9 (SIGKILL)"},
      {v1::TrainerExited::CAUSE_SIGNAL, 11, true, true, "rank 1 on w1 was killed by signal 11 (SIGSEGV)"},
      {v1::TrainerExited::CAUSE_STOPPED, 0, false, false, ""},
      {v1::TrainerExited::CAUSE_STOPPED, 0, false, true, "rank 1 on w1 was ended by its daemon"},
      {v1::TrainerExited::CAUSE_LOST, 0, false, true, "rank 1 on w1 is lost"},
  };
  for (const Case& c : cases) {
    v1::TrainerExited exit;
    exit.set_cause(c.cause);
    (c.cause == v1::TrainerExited::CAUSE_SIGNAL) ? exit.set_signal(c.number) : exit.set_code(c.number);
    auto failure = JudgeExit({.rank = 1,
                              .host = "w1",
                              .told_finished = c.finished,
                              .stopped_unasked = false,
                              .was_desired = c.desired,
                              .exit = &exit});
    EXPECT_EQ(failure.has_value(), *c.expected != 0);
    EXPECT_THAT(failure.has_value() ? failure->text() : "", StartsWith(c.expected));
  }
}

TEST(Recovery, RestartsUntilTheyAreUsedUp_FromTheNewestCheckpoint) {
  v1::FailureRecord failure;
  failure.set_kind(v1::FailureRecord::KIND_SIGNAL);
  failure.set_text("rank 1 died");
  RecoveryFacts facts{.failure = &failure, .restarts = 0, .max_restarts = 2, .checkpoint_step = 100,
                      .failures_without_progress = 0};
  RecoveryDecision decision = DecideRecovery(facts);
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.delay, absl::ZeroDuration());
  EXPECT_EQ(decision.reason, "rank 1 died; restarting from step 100 (restart 1 of 2)");

  facts.failures_without_progress = 3;
  facts.checkpoint_step = std::nullopt;
  EXPECT_EQ(DecideRecovery(facts).delay, absl::Seconds(1));
  EXPECT_THAT(DecideRecovery(facts).reason, HasSubstr("from the beginning"));
  facts.failures_without_progress = 1'000;
  EXPECT_EQ(DecideRecovery(facts).delay, absl::Seconds(10));

  facts.restarts = 2;
  EXPECT_FALSE(DecideRecovery(facts).restart);
  facts.restarts = 0;
  for (auto kind : {v1::FailureRecord::KIND_REFUSED, v1::FailureRecord::KIND_DIGEST, v1::FailureRecord::KIND_START}) {
    failure.set_kind(kind);
    EXPECT_FALSE(DecideRecovery(facts).restart) << FailureKindName(kind);
  }
}

TEST(Recovery, ACauseOfItsOwn_IsBetterThanWhatPeersSay_AndARefusalBest) {
  auto failure = [](v1::FailureRecord::Kind kind) {
    v1::FailureRecord record;
    record.set_kind(kind);
    return record;
  };
  v1::FailureRecord collective = failure(v1::FailureRecord::KIND_COLLECTIVE);
  v1::FailureRecord signal = failure(v1::FailureRecord::KIND_SIGNAL);
  v1::FailureRecord refused = failure(v1::FailureRecord::KIND_REFUSED);
  EXPECT_TRUE(IsBetterCause(signal, collective));
  EXPECT_FALSE(IsBetterCause(collective, signal));
  EXPECT_FALSE(IsBetterCause(collective, collective)) << "the earliest of its kind stays";
  EXPECT_FALSE(IsBetterCause(signal, signal));
  EXPECT_TRUE(IsBetterCause(refused, signal));
  EXPECT_FALSE(IsBetterCause(signal, refused));
}

}  // namespace
}  // namespace trainyard
