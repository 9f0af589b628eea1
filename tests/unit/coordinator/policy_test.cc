// The coordinator's policies as tables: the decision and its reason for given facts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/health.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/rank_assignment.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(RankAssignment, RanksStayOnTheirHosts_OverGenerations) {
  HostName a("a"), b("b"), c("c");
  EXPECT_THAT(AssignRanks({{a, 2}, {b, 1}}, {}), ElementsAre(a, a, b));
  EXPECT_THAT(AssignRanks({{a, 2}, {c, 1}}, {a, b, a}), ElementsAre(a, c, a)) << "only rank 1 must move";
  EXPECT_THAT(AssignRanks({{b, 3}}, {a, b, a}), ElementsAre(b, b, b));
  EXPECT_THAT(AssignRanks({{b, 1}, {a, 2}}, {}), ElementsAre(b, a, a)) << "the order of hosts must not change";
}

TEST(Health, HostIsReachable_WhileItsLeaseLasts_EvenWithoutAStream) {
  absl::Time now = absl::FromUnixSeconds(100);
  HostFacts facts{.attached = true, .last_contact = now - absl::Seconds(3), .lease = absl::Seconds(3)};
  EXPECT_TRUE(CheckContact(now, facts).reachable);
  facts.last_contact -= absl::Milliseconds(200);
  EXPECT_FALSE(CheckContact(now, facts).reachable);
  EXPECT_EQ(CheckContact(now, facts).reason, "no contact for 3.2s (lease 3s)");
  facts = {.attached = false, .last_contact = now, .lease = absl::Seconds(3)};
  EXPECT_TRUE(CheckContact(now, facts).reachable);
  facts.last_contact = now + absl::Seconds(1);
  EXPECT_TRUE(CheckContact(now, facts).reachable) << "a contact after the time of the event must count";
}

TEST(Health, LeaseGrowsWithUnevenHeartbeats_UpToABound_AndShrinksAgain) {
  const absl::Duration base = absl::Seconds(3);
  HeartbeatGaps gaps;
  EXPECT_EQ(AdaptiveLease(base, gaps), base);
  for (int i = 0; i < 50; ++i) ObserveGap(absl::Seconds(1), base, gaps);
  EXPECT_EQ(AdaptiveLease(base, gaps), base) << "regular heartbeats do not change the lease";
  for (int i = 0; i < 50; ++i) ObserveGap(absl::Milliseconds(i % 2 == 0 ? 200 : 2'900), base, gaps);
  EXPECT_GT(AdaptiveLease(base, gaps), absl::Seconds(5));
  EXPECT_LE(AdaptiveLease(base, gaps), kLeaseGrowth * base);
  HeartbeatGaps before = gaps;
  ObserveGap(absl::Minutes(5), base, gaps);
  EXPECT_EQ(AdaptiveLease(base, gaps), AdaptiveLease(base, before)) << "an outage does not count as uneven heartbeats";
  for (int i = 0; i < 50; ++i) ObserveGap(absl::Seconds(11), base, gaps);
  for (int i = 0; i < 4; ++i) ObserveGap(i % 2 == 0 ? absl::Milliseconds(1) : absl::Seconds(12), base, gaps);
  EXPECT_EQ(AdaptiveLease(base, gaps), kLeaseGrowth * base);
  for (int i = 0; i < 100; ++i) ObserveGap(absl::Seconds(1), base, gaps);
  EXPECT_EQ(AdaptiveLease(base, gaps), base);
}

TEST(Lifecycle, Table_IsDeterministic_HasNoTransitionFromAFinalState_AndReachesEveryState) {
  std::set<std::pair<int, int>> seen;
  std::set<v1::JobState> reached = {v1::JOB_STATE_QUEUED};
  for (const Transition& transition : LifecycleTable()) {
    EXPECT_TRUE(seen.insert({transition.from, static_cast<int>(transition.event)}).second)
        << "the transition is twice in the table";
    EXPECT_FALSE(IsFinal(transition.from)) << "a final state must have no transitions";
    reached.insert(transition.to);
  }
  EXPECT_EQ(reached.size(), 10u) << "the transitions must reach every state";
  EXPECT_EQ(NextState(v1::JOB_STATE_QUEUED, LifecycleEvent::kAllReady), std::nullopt);
  EXPECT_THAT(PrintLifecycle(), HasSubstr("| STARTING | all_ready | RUNNING |"));
}

TEST(Recovery, Exit_IsAFailureWithItsCause_UnlessItWasExpected) {
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
      {v1::TrainerExited::CAUSE_EXIT, 0, false, true, "rank 1 on w1 exited with code 0 before all its steps were made"},
      {v1::TrainerExited::CAUSE_EXIT, 1, false, true, "rank 1 on w1 exited with code 1"},
      {v1::TrainerExited::CAUSE_EXIT, 2, false, true, "rank 1 on w1 refused the job (exit code 2)"},
      {v1::TrainerExited::CAUSE_EXIT, 3, false, true, "rank 1 on w1 exited because its group was aborted"},
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
    auto failure = ClassifyExit({.rank = 1,
                                 .host = "w1",
                                 .reported_finished = c.finished,
                                 .stopped_unrequested = false,
                                 .was_desired = c.desired,
                                 .exit = &exit});
    EXPECT_EQ(failure.has_value(), *c.expected != 0) << "cause " << c.cause << ", code or signal " << c.number;
    EXPECT_THAT(failure.has_value() ? failure->text() : "", StartsWith(c.expected));
  }
}

TEST(Recovery, ExitOfATrainerThatItsHostCannotRun_HasItsReason) {
  v1::TrainerExited exit;
  exit.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exit.set_code(127);
  exit.set_message("no GPU can be used on this machine");

  const auto failure = ClassifyExit({.rank = 1, .host = "w1", .exit = &exit});

  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind(), v1::FailureRecord::KIND_START);
  EXPECT_EQ(failure->text(), "rank 1 on w1 could not be run (exit code 127): no GPU can be used on this machine");
}

TEST(Recovery, ExitCodesOfACommand_HaveNoMeaning) {
  for (const int code : {1, 2, 3, 127}) {
    v1::TrainerExited exit;
    exit.set_cause(v1::TrainerExited::CAUSE_EXIT);
    exit.set_code(code);
    exit.set_message("ValueError: no data");

    const auto failure = ClassifyExit({.rank = 1, .host = "w1", .is_command = true, .exit = &exit});

    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->kind(), v1::FailureRecord::KIND_EXIT);
    EXPECT_EQ(failure->text(), absl::StrCat("rank 1 on w1 exited with code ", code, ": ValueError: no data"));
  }
}

TEST(Recovery, RestartsFromTheNewestCheckpoint_UntilTheLimit) {
  v1::FailureRecord failure;
  failure.set_kind(v1::FailureRecord::KIND_SIGNAL);
  failure.set_text("rank 1 died");
  RecoveryFacts facts{
      .failure = &failure, .restarts = 0, .max_restarts = 2, .checkpoint_step = 100, .failures_without_progress = 0};
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
  for (auto kind : {v1::FailureRecord::KIND_REFUSED, v1::FailureRecord::KIND_DIGEST}) {
    failure.set_kind(kind);
    EXPECT_FALSE(DecideRecovery(facts).restart) << FailureKindName(kind);
  }
}

TEST(Recovery, SameErrorBeforeTheFirstStep_IsTriedSixTimes) {
  v1::FailureRecord failure = MakeRankFailure(v1::FailureRecord::KIND_EXIT, 0, "w1", "exited with code 1");
  failure.set_error("out of memory: process 77 uses 20.5 MiB");
  RecoveryFacts facts;
  facts.failure = &failure;
  facts.max_restarts = 10;
  facts.same_errors = 4;
  EXPECT_TRUE(DecideRecovery(facts).restart);

  facts.same_errors = 5;
  EXPECT_FALSE(DecideRecovery(facts).restart);
  EXPECT_EQ(DecideRecovery(facts).reason,
            "rank 0 on w1 exited with code 1; the job has failed 6 times in a row with this error before its first "
            "step: out of memory: process 77 uses 20.5 MiB");
  failure.clear_error();
  EXPECT_TRUE(DecideRecovery(facts).restart) << "an unknown error does not count as the same error";
}

TEST(Recovery, SameErrors_MayHaveOtherNumbers) {
  EXPECT_TRUE(IsSameError("process 77 uses 20.5 MiB", "process 6 uses 20 MiB"));
  EXPECT_FALSE(IsSameError("cannot open /data", "cannot open /home"));
  EXPECT_FALSE(IsSameError("", ""));
}

TEST(Recovery, ErrorOfAnExit_IsTheLastLineThatIsNotEmpty) {
  v1::TrainerExited exit;
  exit.set_cause(v1::TrainerExited::CAUSE_EXIT);
  exit.set_code(1);
  EXPECT_EQ(ErrorOf(exit), "");
  for (const char* line : {"step 1", "out of memory", ""}) exit.add_last_lines(line);
  EXPECT_EQ(ErrorOf(exit), "out of memory");
  exit.set_code(0);
  EXPECT_EQ(ErrorOf(exit), "");
}

TEST(Recovery, FailedProcess_IsReportedWithItsResourceUse) {
  v1::TrainerExited exit;
  exit.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
  exit.set_signal(9);
  exit.set_max_rss_bytes(uint64_t{3} << 29);
  exit.set_user_s(40);
  exit.set_system_s(2.5);
  EndedRank ended{.rank = 1, .host = "w1", .exit = &exit};

  EXPECT_EQ(ClassifyExit(ended)->text(),
            "rank 1 on w1 was killed by signal 9 (SIGKILL), having used up to 1.50 GiB of memory and 42.5 s of CPU");
  EXPECT_EQ(ClassifyExit(ended)->host(), "w1");
  exit.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_EQ(ClassifyExit(ended)->kind(), v1::FailureRecord::KIND_START);
  exit.set_may_pass(true);
  EXPECT_EQ(ClassifyExit(ended)->kind(), v1::FailureRecord::KIND_NO_ROOM);
}

TEST(Recovery, HostSpecificFailure_RestartsOnOtherHosts) {
  v1::FailureRecord failure = MakeRankFailure(v1::FailureRecord::KIND_START, 0, "w2", "could not be started");
  RecoveryFacts facts{.failure = &failure, .restarts = 0, .max_restarts = 0, .checkpoint_step = 40};
  EXPECT_FALSE(DecideRecovery(facts).restart);
  EXPECT_THAT(DecideRecovery(facts).reason, HasSubstr("no other host can run the job"));
  facts.max_restarts = 1;
  facts.fits_elsewhere = true;
  EXPECT_TRUE(DecideRecovery(facts).restart);

  failure.set_kind(v1::FailureRecord::KIND_NO_ROOM);
  facts.fits_elsewhere = false;
  facts.restarts = facts.max_restarts;
  EXPECT_TRUE(DecideRecovery(facts).restart) << "a restart because of a problem that may pass must not count";
  EXPECT_THAT(DecideRecovery(facts).reason, HasSubstr("not counted as a restart"));
  failure.set_kind(v1::FailureRecord::KIND_CHECKPOINT);
  facts.max_restarts = 0;
  EXPECT_TRUE(DecideRecovery(facts).restart) << "a restart because of a missing checkpoint must not count";
  EXPECT_THAT(DecideRecovery(facts).reason, HasSubstr("waits for a host that has the checkpoint"));
}

TEST(Recovery, FailureOfARank_IsABetterCauseThanItsPeersReports_AndARefusalIsTheBest) {
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
  EXPECT_FALSE(IsBetterCause(collective, collective)) << "the earliest failure of a kind must stay the cause";
  EXPECT_FALSE(IsBetterCause(signal, signal));
  EXPECT_TRUE(IsBetterCause(refused, signal));
  EXPECT_FALSE(IsBetterCause(signal, refused));
}

}  // namespace
}  // namespace trainyard
