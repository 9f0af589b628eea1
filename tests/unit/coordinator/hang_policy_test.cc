// policy/hang: which rank is named, how soon, and which ranks must not be named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/hang.h"
#include "tests/unit/coordinator/hang_facts.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Act = HangDecision::Act;

TEST_F(HangTest, RankThatHasNotEnteredTheOthersOperation_IsNamed) {
  AddRank();
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 412, 412);
  SetPosition(facts_.ranks[1], 411);
  WaitIn(facts_.ranks[2], 412, 412);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(2.9)).act, Act::kNone);
  HangDecision early = DecideAfter(absl::Seconds(3.1));
  HangDecision decided = DecideAfter(absl::Seconds(5.1));

  EXPECT_EQ(early.act, Act::kExamine);
  EXPECT_THAT(early.culprits, ElementsAre(1));
  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, ElementsAre(1));
  EXPECT_TRUE(decided.phase == Phase::kTrain);
  EXPECT_THAT(decided.reason,
              HasSubstr("rank 1 on w2 makes no progress and has not entered all-reduce 412 (8 x fp64) of "
                        "step 37, in which 2 ranks wait; no progress for 5.1 s (limit 5.0 s"));
}

TEST_F(HangTest, Examination_IsReported_ButDoesNotDecide) {
  v1::Examination seen;
  seen.set_state("R");
  seen.set_cpu_share(0.99);
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 9, 9);
  SetPosition(facts_.ranks[1], 8);
  facts_.ranks[1].examination = &seen;
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(4.9)).act, Act::kExamine);
  EXPECT_THAT(DecideAfter(absl::Seconds(5)).reason,
              HasSubstr("rank 1 on w2 is spinning (CPU share 0.99, state R) and has not"));

  seen.set_cpu_share(0.3);  // on a crowded host
  EXPECT_THAT(DecideAfter(absl::Seconds(5)).reason, HasSubstr("is spinning (CPU share 0.30, state R) and has not"));
  seen.set_state("S");
  EXPECT_THAT(DecideAfter(absl::Seconds(5)).reason,
              HasSubstr("makes no progress (CPU share 0.30, state S) and has not"));
  seen.set_cpu_share(0.01);
  seen.set_system_call("pause");
  seen.add_stack("__pause");
  seen.add_stack("main");
  EXPECT_THAT(DecideAfter(absl::Seconds(5)).reason,
              HasSubstr("is blocked in the system call pause (state S) [__pause < main] and has not entered"));
}

TEST_F(HangTest, Decision_WaitsForAnOutstandingExamination) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 9, 9);
  SetPosition(facts_.ranks[1], 8);
  SetLearned(Phase::kTrain, 0.1);
  facts_.examining = true;

  EXPECT_EQ(DecideAfter(absl::Seconds(5.5)).act, Act::kExamine);

  facts_.examining = false;
  EXPECT_EQ(DecideAfter(absl::Seconds(5.6)).act, Act::kRestart);
}

TEST_F(HangTest, StoppedRank_IsNamedAfterThreeSeconds_InAnyPhase) {
  for (Phase phase : {Phase::kTrain, Phase::kEvaluate, Phase::kSave, Phase::kFirstStep, Phase::kReady}) {
    facts_.ranks.clear();
    AddRank(phase);
    AddRank(phase);
    WaitIn(facts_.ranks[0], 412, 412);
    SetPosition(facts_.ranks[1], 411);
    facts_.ranks[1].process_state = "T";

    HangDecision early = DecideAfter(absl::Seconds(2.9));
    HangDecision decided = DecideAfter(absl::Seconds(3));

    EXPECT_EQ(early.act, Act::kNone) << PhaseName(phase);
    EXPECT_EQ(decided.act, Act::kRestart) << PhaseName(phase);
    EXPECT_THAT(decided.culprits, ElementsAre(1)) << PhaseName(phase);
    EXPECT_EQ(decided.phase.name(), "");
    EXPECT_THAT(decided.reason, HasSubstr("rank 1 on w2 is stopped (SIGSTOP, state T) and was not seen to enter "
                                          "all-reduce 412 (8 x fp64) of"));
  }
}

// `go` may be late on a lossy network, so the usual length of a first step is not the limit.
TEST_F(HangTest, RanksThatHaveNotReceivedGo_HaveTheTimeThatALossyNetworkNeeds) {
  for (const bool other_waits : {false, true}) {
    facts_.ranks.clear();
    AddRank(Phase::kReady);
    AddRank(other_waits ? Phase::kFirstStep : Phase::kReady);
    if (other_waits) WaitIn(facts_.ranks[1], 1, 1);
    SetLearned(Phase::kFirstStep, 0.7);

    EXPECT_EQ(DecideAfter(absl::Seconds(29.9)).act, Act::kExamine) << "other_waits " << other_waits;
    EXPECT_EQ(DecideAfter(absl::Seconds(30)).act, Act::kRestart) << "other_waits " << other_waits;
  }
  facts_.ranks[0].phase = Phase::kFirstStep;
  EXPECT_EQ(DecideAfter(absl::Seconds(7.2)).act, Act::kRestart) << "rank 0 has received go";
}

TEST_F(HangTest, ProcessUnderADebugger_DoesNotCountAsStopped) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 412, 412);
  SetPosition(facts_.ranks[1], 411);
  facts_.ranks[1].process_state = "t";
  SetLearned(Phase::kTrain, 10);

  EXPECT_EQ(DecideAfter(absl::Seconds(4)).act, Act::kExamine);
  EXPECT_EQ(DecideAfter(absl::Seconds(19)).act, Act::kExamine);
}

TEST_F(HangTest, SilentRank_IsNamedAfterThreeSecondsWithoutReports) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 5, 5);
  SetPosition(facts_.ranks[1], 4);
  facts_.ranks[1].silent = true;
  facts_.ranks[1].process_state = "D";

  HangDecision decided = DecideAfter(absl::Seconds(3));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.reason, HasSubstr("rank 1 on w2 has sent no report for 3.0 s (state D)"));
}

TEST_F(HangTest, TrainerWithAClosedLink_DoesNotCountAsSilent) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 5, 5);
  SetPosition(facts_.ranks[1], 4);
  SetLearned(Phase::kTrain, 0.1);
  absl::Time now = kStart + absl::Seconds(8);
  facts_.ranks[0].reported_at = facts_.ranks[0].seen_at = facts_.ranks[1].seen_at = now;
  facts_.ranks[1].reported_at = kStart - absl::Seconds(1);

  // After a daemon restart nothing is known about rank 1, which may be computing.
  EXPECT_EQ(DecideHang(now, facts_).act, Act::kNone);

  // The policy waits at most 30 s for a report of rank 1.
  now = kStart + absl::Seconds(31);
  facts_.ranks[0].reported_at = facts_.ranks[0].seen_at = facts_.ranks[1].seen_at = now;
  EXPECT_EQ(DecideHang(now, facts_).act, Act::kRestart);
}

// A host's lease grows because its messages arrive irregularly. When the messages stop, the last reports of the host do
// not prove a stall.
TEST_F(HangTest, LateMessages_ProveNoStall) {
  AddRank();
  AddRank();
  SetPosition(facts_.ranks[0], 4);
  SetPosition(facts_.ranks[1], 4);
  SetLearned(Phase::kTrain, 2);
  const absl::Time last_report = kStart + absl::Seconds(2);
  for (RankPosition& rank : facts_.ranks) rank.reported_at = rank.seen_at = last_report;

  EXPECT_EQ(DecideHang(kStart + absl::Seconds(8), facts_).act, Act::kNone);

  // If rank 1 waits for rank 0 and messages from the host of rank 1 still arrive, the decision is the same.
  WaitIn(facts_.ranks[1], 5, 5);
  facts_.ranks[1].reported_at = facts_.ranks[1].seen_at = kStart + absl::Seconds(8);
  EXPECT_EQ(DecideHang(kStart + absl::Seconds(8), facts_).act, Act::kNone);

  facts_.ranks[0].reported_at = facts_.ranks[0].seen_at = kStart + absl::Seconds(8);
  EXPECT_EQ(DecideHang(kStart + absl::Seconds(8), facts_).act, Act::kRestart)
      << "all ranks have reported that they make no progress";
}

TEST_F(HangTest, RanksThatHaveNotReportedToARestartedCoordinator_GetThirtySeconds) {
  AddRank();
  AddRank();
  for (RankPosition& rank : facts_.ranks) rank.progress_at = absl::InfinitePast();
  absl::Time now = kStart + absl::Seconds(29);
  facts_.ranks[0].seen_at = facts_.ranks[1].seen_at = now;

  EXPECT_EQ(DecideHang(now, facts_).act, Act::kNone);
  now = kStart + absl::Seconds(31);
  facts_.ranks[0].seen_at = facts_.ranks[1].seen_at = now;
  HangDecision decided = DecideHang(now, facts_);

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.reason, HasSubstr("have sent no report for 31.0 s"));
}

TEST_F(HangTest, SlowPhases_RaiseNoAlarmWithinTheirUsualTime) {
  struct Case {
    Phase phase;
    double learned_s;
    absl::Duration quiet;
  };
  for (const Case& c : {Case{Phase::kEvaluate, 20, absl::Seconds(64)}, Case{Phase::kSave, 60, absl::Seconds(184)},
                        Case{Phase::kFirstStep, 30, absl::Seconds(94)}, Case{Phase::kTrain, 10, absl::Seconds(19)}}) {
    facts_.ranks.clear();
    facts_.phases.clear();
    AddRank(c.phase);
    AddRank();
    SetPosition(facts_.ranks[0], 4);
    WaitIn(facts_.ranks[1], 5, 5);
    SetLearned(Phase::kTrain, 0.1);
    SetLearned(c.phase, c.learned_s);

    EXPECT_EQ(DecideAfter(c.quiet).act, Act::kExamine) << PhaseName(c.phase);
    EXPECT_EQ(DecideAfter(c.quiet + absl::Seconds(2)).act, Act::kRestart) << PhaseName(c.phase);
  }
}

TEST_F(HangTest, StallInAPhaseOfUnknownLength_IsOnlyReported_AndNotWhileTheProcessUsesTheCpu) {
  AddRank(Phase::kSave);
  AddRank(Phase::kSave);
  SetPosition(facts_.ranks[0], 4);
  WaitIn(facts_.ranks[1], 5, 5);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(119)).act, Act::kExamine);
  HangDecision decided = DecideAfter(absl::Seconds(120));
  EXPECT_EQ(decided.act, Act::kNotify);
  EXPECT_FALSE(decided.learned);
  EXPECT_THAT(decided.reason, HasSubstr("the usual duration of save is not known yet"));

  facts_.ranks[0].busy_at = kStart + absl::Seconds(100);
  EXPECT_EQ(DecideAfter(absl::Seconds(219)).act, Act::kExamine);
  EXPECT_EQ(DecideAfter(absl::Seconds(220)).act, Act::kNotify);
}

TEST_F(HangTest, CpuUse_IsNoProgress_WhenPhaseTimesAreKnown) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 5, 5);
  SetPosition(facts_.ranks[1], 4);
  SetLearned(Phase::kTrain, 0.1);
  facts_.ranks[1].busy_at = kStart + absl::Seconds(6);

  EXPECT_EQ(DecideAfter(absl::Seconds(6)).act, Act::kRestart);
}

TEST_F(HangTest, StoppedRankWithOnHangNotify_IsReported_ButNotRestarted) {
  facts_.restart = false;
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 5, 5);
  SetPosition(facts_.ranks[1], 4);
  facts_.ranks[1].process_state = "T";

  EXPECT_EQ(DecideAfter(absl::Seconds(3)).act, Act::kNotify);
}

TEST_F(HangTest, RestartAfterAHang_DoublesTheLimit) {
  EXPECT_EQ(HangLimit(Phase::kTrain, {.learned_s = 0.1}), absl::Seconds(5));
  EXPECT_EQ(HangLimit(Phase::kTrain, {.learned_s = 0.1, .doublings = 1}), absl::Seconds(10));
  EXPECT_EQ(HangLimit(Phase::kTrain, {.learned_s = 4}), absl::Seconds(8));
  EXPECT_EQ(HangLimit(Phase::kSave, {.learned_s = 4, .doublings = 2}), absl::Seconds(68));
  EXPECT_EQ(HangLimit(Phase::kSave, {}), absl::Seconds(120));
  EXPECT_EQ(HangLimit(Phase::kTrain, {.learned_s = 0.1, .doublings = 1000}), absl::Seconds(5 * 64));
}

TEST_F(HangTest, SkippedCollective_NamesTheRankThatStartedFewerOperations) {
  for (int i = 0; i < 3; ++i) AddRank();
  WaitIn(facts_.ranks[0], 411, 414);
  WaitIn(facts_.ranks[1], 411, 413);  // its operation 411 is the one that follows the skipped one
  WaitIn(facts_.ranks[2], 411, 414);
  SetLearned(Phase::kTrain, 0.1);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_THAT(decided.culprits, ElementsAre(1));
  EXPECT_THAT(decided.reason,
              HasSubstr("rank 1 on w2 waits in all-reduce 411 (8 x fp64) and has not entered all-reduce "
                        "411 (8 x fp64) of step 37, in which 2 ranks wait"));
}

// A packet for rank 1 was lost: the rank is still in an operation that rank 0 has completed.
TEST_F(HangTest, RankInAnOperationThatOthersCompleted_IsNotBlamed_AndTheNetworkGetsTime) {
  for (int i = 0; i < 2; ++i) AddRank();
  WaitIn(facts_.ranks[0], 61, 61);
  WaitIn(facts_.ranks[1], 59, 60);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(29)).act, Act::kExamine);
  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(decided.reason,
              HasSubstr("rank 1 on w2 waits in all-reduce 59 (8 x fp64) of 'world' in step 37, although "
                        "the other ranks have done their part: data does not arrive over the network "
                        "at w2"));
}

TEST_F(HangTest, OperationsThatAPeerStartedEarly_DoNotCountAsSkipped) {
  // Rank 0 has started three buckets and waits for the first; rank 1 still computes and has started only the first.
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 10, 12);
  SetPosition(facts_.ranks[1], 10);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_THAT(DecideAfter(absl::Seconds(6)).culprits, ElementsAre(1));
}

TEST_F(HangTest, MismatchedOperation_BlamesTheMinority_AndRank0IsRightInATie) {
  for (int i = 0; i < 3; ++i) AddRank();
  WaitIn(facts_.ranks[0], 412, 412, Operation(412, "4096 x fp32"));
  WaitIn(facts_.ranks[1], 412, 412);
  WaitIn(facts_.ranks[2], 412, 412);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_THAT(DecideAfter(absl::Seconds(6)).culprits, ElementsAre(0));

  facts_.ranks.pop_back();
  EXPECT_THAT(DecideAfter(absl::Seconds(6)).culprits, ElementsAre(1));
}

// A mesh of 2 x 2. Ranks 0 and 1 wait in the world group for ranks 2 and 3. Rank 2 waits in the shard group of ranks 2
// and 3 for rank 3, which has skipped an operation there and waits in its replicate group.
TEST_F(HangTest, SeveralGroups_NameTheRankAtTheEndOfTheChain) {
  auto position = [](RankPosition& rank, const std::string& name, uint64_t started, bool waits) {
    v1::CommunicatorReport& report = rank.communicators.emplace_back();
    report.set_name(name);
    report.set_started(started);
    report.set_last_started(Operation(started, name));
    if (waits) report.set_waits_in(Operation(started, name));
  };
  for (int i = 0; i < 4; ++i) AddRank();
  std::vector<RankPosition>& ranks = facts_.ranks;
  position(ranks[0], "world", 5, true);
  position(ranks[0], "shard of ranks 0-1", 80, false);
  position(ranks[1], "world", 5, true);
  position(ranks[1], "shard of ranks 0-1", 80, false);
  position(ranks[1], "replicate of ranks 1-3 by 2", 9, false);
  position(ranks[2], "world", 4, false);
  position(ranks[2], "shard of ranks 2-3", 80, true);
  position(ranks[3], "world", 4, false);
  position(ranks[3], "shard of ranks 2-3", 79, false);
  position(ranks[3], "replicate of ranks 1-3 by 2", 9, true);
  SetLearned(Phase::kTrain, 0.1);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_THAT(decided.culprits, ElementsAre(3));
  EXPECT_THAT(decided.reason, HasSubstr("in which 3 ranks wait"));
}

TEST_F(HangTest, RankInADebugger_IsNamed_ButNotRestarted) {
  WaitIn(AddRank(), 412, 412);
  AddRank().process_state = "t";
  facts_.ranks[1].silent = true;
  SetLearned(Phase::kTrain, 0.1);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_EQ(decided.act, Act::kNotify);
  EXPECT_THAT(decided.reason, HasSubstr("rank 1 on w2 is held by a debugger (state t)"));
}

TEST_F(HangTest, AllRanksInTheSameOperation_BlamesTheNetwork_AndNoRank) {
  for (int i = 0; i < 2; ++i) WaitIn(AddRank(), 412, 412);
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(29)).act, Act::kExamine) << "a lossy network may still deliver the data";
  HangDecision decided = DecideAfter(absl::Seconds(31));

  EXPECT_EQ(decided.act, Act::kRestart);
  EXPECT_THAT(decided.culprits, IsEmpty());
  EXPECT_THAT(decided.reason, HasSubstr("all 2 ranks are inside all-reduce 412 (8 x fp64) in step 37, and none of "
                                        "them is stopped: data between w1 and w2 does not arrive over the network"));
}

TEST_F(HangTest, WorldOfOne_NamesItsOnlyRank) {
  SetPosition(AddRank(), 0);
  SetLearned(Phase::kTrain, 0.1);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_THAT(decided.culprits, ElementsAre(0));
  EXPECT_THAT(decided.reason, HasSubstr("rank 0 on w1 makes no progress in step 37"));
}

TEST_F(HangTest, WithoutAWaitingRank_AllRanksAreNamed) {
  for (int i = 0; i < 2; ++i) SetPosition(AddRank(), 7);
  SetLearned(Phase::kTrain, 0.1);

  HangDecision decided = DecideAfter(absl::Seconds(6));

  EXPECT_THAT(decided.culprits, ElementsAre(0, 1));
  EXPECT_THAT(decided.reason, HasSubstr("none of 2 ranks makes progress and none waits for another"));
}

TEST_F(HangTest, UnreachableHost_IsLeftToHostLoss_UnlessTheCulpritIsCertain) {
  for (int i = 0; i < 3; ++i) WaitIn(AddRank(), 412, 412);
  facts_.ranks[2].reachable = false;
  SetLearned(Phase::kTrain, 0.1);

  EXPECT_EQ(DecideAfter(absl::Seconds(60)).act, Act::kNone);

  SetPosition(facts_.ranks[1], 411);
  EXPECT_THAT(DecideAfter(absl::Seconds(60)).culprits, ElementsAre(1));
}

// The time without progress starts again when a coordinator was restarted or a host has attached.
TEST_F(HangTest, TimeWithoutProgress_CountsFromALaterStart) {
  AddRank();
  AddRank();
  WaitIn(facts_.ranks[0], 5, 5);
  SetPosition(facts_.ranks[1], 4);
  SetLearned(Phase::kTrain, 0.1);
  facts_.since = kStart + absl::Seconds(10);

  EXPECT_EQ(DecideAfter(absl::Seconds(12.9)).act, Act::kNone);
  EXPECT_EQ(DecideAfter(absl::Seconds(14.9)).act, Act::kExamine);
  EXPECT_EQ(DecideAfter(absl::Seconds(15)).act, Act::kRestart);
}

TEST_F(HangTest, EndedRank_IsNotNamed) {
  AddRank(Phase::kSave);
  AddRank(Phase::kEnded).ended = true;
  SetPosition(facts_.ranks[0], 4);
  SetLearned(Phase::kSave, 1);

  HangDecision decided = DecideAfter(absl::Seconds(20));

  EXPECT_THAT(decided.culprits, ElementsAre(0));
}

TEST(PhaseTimesTest, KeepsTheLongestOfTheLast64Steps) {
  PhaseTimes times;
  EXPECT_EQ(times.longest(), 0);

  times.Add(1, 5.0);
  for (uint64_t step = 2; step <= 64; ++step) times.Add(step, 0.1);
  EXPECT_EQ(times.longest(), 5.0);

  // Another rank's report of the same step does not count as another step.
  times.Add(64, 0.3);
  EXPECT_EQ(times.longest(), 5.0);

  times.Add(65, 0.1);
  EXPECT_EQ(times.longest(), 0.3);
}

}  // namespace
}  // namespace trainyard
