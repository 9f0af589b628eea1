// policy/host_loss: when a host is lost, and what must not count as a loss.
#include "coordinator/policy/host_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/policy/report_interval.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kOperation = "all-reduce 17 (6553600 x fp32)";

PeerRank Waiting() {
  PeerRank peer;
  peer.reports = true;
  peer.waits_in = kOperation;
  return peer;
}

// A host without contact for 10 s, two waiting peers, steps of 0.5 s, no step completed for 9 s.
struct Stalled {
  Stalled() : peers(2, Waiting()) {
    facts.host = "w2";
    facts.silent_for = absl::Seconds(10);
    facts.lease = absl::Seconds(3);
    facts.ranks_on_reachable_hosts = 2;
    facts.since_progress = absl::Seconds(9);
    facts.learned_step = absl::Milliseconds(500);
    facts.abandon_after = absl::Seconds(600);
  }
  HostLossDecision Decide() {
    facts.peers = peers;
    return DecideHostLoss(facts);
  }
  std::vector<PeerRank> peers;
  HostLossFacts facts;
};

TEST(HostLoss, SilenceAlone_NeverLosesAHost) {
  Stalled stalled;
  stalled.facts.silent_for = absl::Hours(10);
  stalled.facts.since_progress = absl::ZeroDuration();
  EXPECT_FALSE(stalled.Decide().lost) << "the job completes steps";
}

TEST(HostLoss, WithinTheLease_NothingIsDecided) {
  Stalled stalled;
  stalled.facts.silent_for = stalled.facts.lease;
  stalled.facts.broken = "rank 0 on w1 reports a broken collective";
  EXPECT_FALSE(stalled.Decide().lost);
  stalled.facts.silent_for += absl::Milliseconds(1);
  EXPECT_TRUE(stalled.Decide().lost);
  EXPECT_EQ(stalled.Decide().reason,
            "host w2 is lost: no contact for 3s, and rank 0 on w1 reports a broken collective");
}

TEST(HostLoss, StallOfAllPeersInOneOperation_LosesTheHost_AfterMostOfALeaseAndTwoSteps) {
  Stalled stalled;
  stalled.facts.since_progress = absl::Milliseconds(3'399);
  EXPECT_FALSE(stalled.Decide().lost);
  stalled.facts.since_progress = absl::Milliseconds(3'400);
  EXPECT_TRUE(stalled.Decide().lost);
  EXPECT_EQ(stalled.Decide().rule, DecisionRule::kHostLost);
  EXPECT_THAT(stalled.Decide().reason, HasSubstr("every reachable rank waits in all-reduce 17"));
}

// A coordinator that is cut off gets no messages: all hosts become silent at about the same time, one slightly earlier.
TEST(HostLoss, Stall_CountsOnlyUpToTheOldestReportOfAPeer) {
  Stalled stalled;
  stalled.facts.since_progress = absl::Milliseconds(3'400);
  stalled.peers[1].report_age = kReportInterval;
  EXPECT_TRUE(stalled.Decide().lost) << "the newest report is not older than the interval";
  stalled.peers[1].report_age += absl::Milliseconds(1);
  EXPECT_FALSE(stalled.Decide().lost);
  stalled.facts.since_progress += absl::Milliseconds(1);
  EXPECT_TRUE(stalled.Decide().lost);

  Stalled evaluating;
  evaluating.peers[1].report_age = kReportInterval + absl::Seconds(2);
  evaluating.peers[1].phase_limit = absl::Seconds(4);
  evaluating.peers[1].phase_time = absl::Milliseconds(5'999);
  EXPECT_FALSE(evaluating.Decide().lost) << "the peer's reports show the phase for less than 4 s";
  evaluating.peers[1].phase_time = absl::Seconds(6);
  EXPECT_TRUE(evaluating.Decide().lost);
}

TEST(HostLoss, OtherExplanationsOfAStall_KeepTheHost) {
  struct Case {
    const char* what;
    void (*change)(Stalled&);
  };
  const Case cases[] = {
      {"a peer evaluates within its time",
       [](Stalled& s) {
         s.peers[1].phase_time = absl::Seconds(9);
         s.peers[1].phase_limit = absl::Seconds(30);
       }},
      {"the time of a peer's phase is not learned",
       [](Stalled& s) {
         s.peers[1].phase_time = absl::Hours(1);
         s.peers[1].phase_limit = absl::InfiniteDuration();
       }},
      {"a peer computes", [](Stalled& s) { s.peers[1].waits_in = ""; }},
      {"no peer waits at all", [](Stalled& s) { s.peers[0].waits_in = s.peers[1].waits_in = ""; }},
      {"a peer waits in another operation", [](Stalled& s) { s.peers[1].waits_in = "all-reduce 18 (1 x fp64)"; }},
      {"a peer hangs", [](Stalled& s) { s.peers[1].suspect = true; }},
      {"a peer has not reported since its link opened", [](Stalled& s) { s.peers[0].reports = false; }},
      {"the step time is not known", [](Stalled& s) { s.facts.learned_step = absl::ZeroDuration(); }},
      {"no peer reports", [](Stalled& s) { s.peers.clear(); }},
  };
  for (const Case& c : cases) {
    Stalled stalled;
    ASSERT_TRUE(stalled.Decide().lost);
    c.change(stalled);
    EXPECT_FALSE(stalled.Decide().lost) << c.what;
    EXPECT_NE(stalled.Decide().reason, "") << c.what;
  }
}

// Stages of a pipeline wait in different channels. A stall then means that none of these operations has changed.
TEST(HostLoss, StallOfAPipeline_LosesTheHost_OnceNoOperationChangesEither) {
  Stalled stalled;  // the limit is 0.8 x 3 s + 2 x 0.5 s
  stalled.peers[0].waits_in = "receive 17 (chunk 0, micro-batch 3)";
  stalled.peers[1].waits_in = "all-reduce 18 (1 x fp64)";
  stalled.peers[0].unchanged = absl::InfiniteDuration();
  stalled.peers[1].unchanged = absl::Milliseconds(3399);
  EXPECT_FALSE(stalled.Decide().lost);

  stalled.peers[1].unchanged = absl::Milliseconds(3400);

  EXPECT_TRUE(stalled.Decide().lost);
  EXPECT_THAT(stalled.Decide().reason,
              HasSubstr("every reachable rank waits, one in receive 17 (chunk 0, micro-batch 3), no step completed for "
                        "3.4s (limit 3.4s)"));
  stalled.peers[1].waits_in = "";
  EXPECT_FALSE(stalled.Decide().lost) << "a peer computes";
}

TEST(HostLoss, PhaseBeyondItsLimit_NoLongerKeepsTheHost) {
  Stalled stalled;
  stalled.peers[0].phase_time = absl::Seconds(31);
  stalled.peers[0].phase_limit = absl::Seconds(30);
  EXPECT_TRUE(stalled.Decide().lost);
}

TEST(HostLoss, HostThatMayNotHaveReceivedGo_GetsTheTimeOfForming) {
  Stalled stalled;
  stalled.facts.received_go = false;
  stalled.facts.learned_step = absl::ZeroDuration();
  stalled.peers[0].phase_limit = absl::InfiniteDuration();
  stalled.facts.since_progress = kFormingPatience - absl::Milliseconds(1);
  EXPECT_FALSE(stalled.Decide().lost);
  EXPECT_THAT(stalled.Decide().reason, HasSubstr("may still wait for `go`"));
  stalled.facts.since_progress = kFormingPatience;
  EXPECT_TRUE(stalled.Decide().lost);
  EXPECT_THAT(stalled.Decide().reason, HasSubstr("have not reported that they began"));

  stalled.peers[0].waits_in = "";
  EXPECT_FALSE(stalled.Decide().lost) << "a peer computes its first step";
  stalled.peers[0] = Waiting();
  stalled.peers[0].phase_time = absl::Seconds(31);
  stalled.peers[0].phase_limit = absl::Seconds(60);
  EXPECT_FALSE(stalled.Decide().lost) << "a first step is known to take longer";
}

TEST(HostLoss, EndingGroup_WaitsForReachableRanksFirst) {
  Stalled stalled;
  stalled.facts.ending = true;
  EXPECT_FALSE(stalled.Decide().lost) << "two ranks are still being ended";
  stalled.peers.clear();
  EXPECT_TRUE(stalled.Decide().lost);
  stalled.facts.ranks_on_reachable_hosts = 0;
  EXPECT_FALSE(stalled.Decide().lost) << "no host is reachable, which proves nothing about this one";
}

TEST(HostLoss, FormingGroup_WaitsForTheHost_ForALimitedTime) {
  Stalled stalled;
  stalled.facts.forming = true;
  stalled.facts.silent_for = absl::Minutes(5);
  stalled.facts.since_progress = kFormingPatience - absl::Milliseconds(1);
  EXPECT_FALSE(stalled.Decide().lost);
  stalled.facts.since_progress = kFormingPatience;
  EXPECT_TRUE(stalled.Decide().lost);
}

TEST(HostLoss, HostOfACommand_IsLostAfterALimitedTime_ThoughNoRankReportsThatItWaits) {
  Stalled stalled;
  stalled.facts.is_command = true;
  stalled.facts.learned_step = absl::ZeroDuration();
  stalled.peers.clear();  // the ranks on reachable hosts have exited with 0
  EXPECT_EQ(stalled.Decide().reason, "the ranks of its command may still run");
  stalled.facts.silent_for = absl::Seconds(30);
  EXPECT_EQ(stalled.Decide().reason,
            "host w2 is lost: no contact for 30s, and the ranks of a command report no progress (limit 30s)");
  EXPECT_TRUE(stalled.Decide().lost);
  stalled.facts.ranks_on_reachable_hosts = 0;
  EXPECT_FALSE(stalled.Decide().lost) << "nothing shows whether the host or the coordinator is cut off";
}

TEST(HostLoss, WithNoHostReachable_OnlyTheRuleAbandonDecides) {
  Stalled stalled;
  stalled.peers.clear();
  stalled.facts.ranks_on_reachable_hosts = 0;
  stalled.facts.none_reachable_for = absl::Seconds(599);
  EXPECT_FALSE(stalled.Decide().lost);
  stalled.facts.none_reachable_for = absl::Seconds(600);
  EXPECT_TRUE(stalled.Decide().lost);
  EXPECT_EQ(stalled.Decide().rule, DecisionRule::kAbandon);
}

}  // namespace
}  // namespace trainyard
