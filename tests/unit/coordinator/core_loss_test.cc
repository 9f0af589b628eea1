// Unreachable hosts, with the production core on a manual clock: how long the core waits for them, when they are lost,
// and what a restarted coordinator may decide.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/fake_host.h"
#include "tests/unit/coordinator/two_hosts.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kWaitedOperation[] = "all-reduce 17 (64 x fp32)";

// Two hosts with a job, and a spare host.
struct LossCluster : TwoHosts {
  explicit LossCluster(bool running = true, double abandon_after_s = 600)
      : TwoHosts(running, abandon_after_s), spare(harness, "w3", 1, 33) {}
  // Lets this time pass, in which rank 0 continues to report that it waits in an operation, or that it makes steps.
  void Wait(absl::Duration time, const std::string& waits_in, bool steps = false) {
    for (absl::Time end = harness.now + time; harness.now < end;) {
      first.ReportPosition(Key(kJob, Get().generation(), 0), "train", steps ? ++step : step, waits_in);
      harness.Advance(absl::Milliseconds(500));
    }
  }
  // Reports enough steps for the coordinator to learn the step time.
  void Learn() {
    for (int i = 0; i < 20; ++i) {
      ++step;
      for (FakeHost* host : {&first, &second}) {
        RankReportsReceived received{host->session, {}};
        v1::RankReport& report = *received.reports.add_reports();
        *report.mutable_key() = Key(kJob, Get().generation(), host == &second);
        report.set_phase("train");
        report.set_last_step(step);
        v1::PhaseTime& time = *report.add_phase_times();
        time.set_phase("train");
        time.set_longest_s(0.1);
        harness.Handle(std::move(received));
      }
      harness.Advance(absl::Milliseconds(100));
    }
  }

  FakeHost spare;
  uint64_t step = 1;
};

TEST(CoreLoss, DisconnectedHost_WhoseRanksContinue_IsLeftAlone) {
  LossCluster cluster;
  cluster.Learn();
  cluster.second.Disconnect();
  cluster.Wait(absl::Seconds(60), "", /*steps=*/true);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  cluster.second.Attach();
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster.Get().generation(), 1u);
}

TEST(CoreLoss, BrokenCollective_AndAnExpiredLease_LoseTheHost_AndASpareIsUsed) {
  LossCluster cluster;
  cluster.spare.Attach();
  cluster.second.Disconnect();
  cluster.first.ReportBroken(Key(kJob, 1, 0), 3);
  cluster.harness.Advance(absl::Seconds(1));
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().generation(), 1u) << "the lease of w2 has not expired";
  cluster.harness.Advance(absl::Seconds(3));

  v1::Job job = cluster.Get();
  EXPECT_EQ(job.generation(), 2u);
  EXPECT_EQ(job.ranks(0).host(), "w1");
  EXPECT_EQ(job.ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(StartsWith("host_lost: host w2 is lost: no contact for")));
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(HasSubstr("rank 0 on w1 reports a broken collective")));

  // The lost host comes back with its old rank, which only occupies a slot and is ended immediately.
  cluster.second.Attach();
  EXPECT_EQ(cluster.second.desired().trainers_size(), 0);
  cluster.second.Save(Key(kJob, 1, 1), 500);
  EXPECT_EQ(cluster.Get().checkpoints_size(), 0) << "the old generation is fenced";
}

TEST(CoreLoss, StallInOneOperation_LosesTheHost_WithinALeaseAndTwoSteps_CountedFromTheLastStep) {
  LossCluster cluster;
  cluster.spare.Attach();
  cluster.Learn();
  cluster.second.Disconnect();
  const absl::Time cut = cluster.harness.now;
  cluster.harness.Advance(absl::Milliseconds(500));
  RankReportsReceived received{cluster.first.session, {}};
  v1::RankReport& report = *received.reports.add_reports();
  *report.mutable_key() = Key(kJob, 1, 0);
  report.set_phase("train");
  report.set_last_step(++cluster.step);
  report.set_phase_s(0.5);
  cluster.harness.Handle(std::move(received));
  while (cluster.Get().state() == v1::JOB_STATE_RUNNING && cluster.harness.now - cut < absl::Seconds(60)) {
    cluster.first.ReportPosition(Key(kJob, 1, 0), "train", cluster.step, kWaitedOperation);
    cluster.harness.Advance(absl::Milliseconds(100));
  }
  EXPECT_GT(cluster.harness.now - cut, absl::Milliseconds(2'400));
  EXPECT_LE(cluster.harness.now - cut, absl::Seconds(3.2)) << "the learned step time is 0.1 s";
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(HasSubstr("every reachable rank waits in all-reduce 17")));
}

// The coordinator knows the step time from generation 1. The ranks of generation 2 are ready, and `go` does not reach
// one host.
TEST(CoreLoss, HostDisconnectedBeforeGo_IsNotLost_WhileItsPeersWait) {
  LossCluster cluster;
  cluster.Learn();
  cluster.first.Kill(Key(kJob, 1, 0), 9);
  cluster.second.Apply();
  cluster.Run();
  ASSERT_EQ(cluster.Get().generation(), 2u);
  ASSERT_GT(cluster.Get().learned_step_s(), 0);
  cluster.step = 0;
  cluster.second.Disconnect();
  cluster.Wait(absl::Seconds(25), kWaitedOperation);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING) << cluster.Get().reason();
  cluster.second.Attach();
  EXPECT_TRUE(cluster.second.desired().trainers(0).go());
  EXPECT_EQ(cluster.Get().restarts(), 1u);
}

TEST(CoreLoss, HostDisconnectedBeforeItsFirstStep_IsReplaced_AfterTheLimitOfAFormingGroup) {
  LossCluster cluster;
  cluster.spare.Attach();
  cluster.second.Disconnect();
  cluster.step = 0;
  cluster.Wait(absl::Seconds(32), kWaitedOperation);
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().generation(), 2u);
  EXPECT_EQ(cluster.Get().ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(HasSubstr("its ranks have not reported that they began")));
}

TEST(CoreLoss, FormingGroup_WaitsForADisconnectedHost) {
  LossCluster cluster(/*running=*/false);
  cluster.first.Apply();
  cluster.second.Apply();
  cluster.second.Disconnect();
  cluster.harness.Advance(absl::Seconds(20));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_STARTING);
  cluster.second.Attach();
  cluster.Run();
  EXPECT_EQ(cluster.Get().generation(), 1u);
  EXPECT_EQ(cluster.Get().restarts(), 0u);
}

TEST(CoreLoss, FormingGroup_UsesASpare_IfTheHostStaysAway) {
  LossCluster cluster(/*running=*/false);
  cluster.spare.Attach();
  cluster.first.Apply();
  cluster.second.Apply();
  cluster.second.Disconnect();
  cluster.harness.Advance(absl::Seconds(31));
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().generation(), 2u);
  EXPECT_EQ(cluster.Get().ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(HasSubstr("the forming group has made no progress for")));
}

TEST(CoreLoss, JobWithoutAReachableHost_IsFlagged_ThenAbandoned) {
  LossCluster cluster(/*running=*/true, /*abandon_after_s=*/60);
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Advance(absl::Seconds(50));
  EXPECT_TRUE(cluster.Get().unreachable());
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  cluster.first.Attach();
  cluster.harness.Advance(absl::Milliseconds(100));
  EXPECT_FALSE(cluster.Get().unreachable());

  cluster.first.Disconnect();
  cluster.harness.Advance(absl::Seconds(70));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(StartsWith("abandon: host w1 is lost")));
  cluster.spare.Attach();
  FakeHost other(cluster.harness, "w4", 1, 44);
  other.Attach();
  EXPECT_EQ(cluster.Get().generation(), 2u);
  EXPECT_EQ(cluster.Get().ranks(0).host(), "w3");
}

TEST(CoreLoss, UnreachableJob_IsNotAbandoned_WhileNoOtherHostHasItsCheckpoint) {
  LossCluster cluster(/*running=*/true, /*abandon_after_s=*/60);
  cluster.first.Save(Key(kJob, 1, 0), 40);
  cluster.spare.Attach();
  FakeHost other(cluster.harness, "w4", 1, 44);
  other.Attach();
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Advance(absl::Seconds(65));
  ASSERT_EQ(cluster.spare.desired().look_for_size(), 1);
  EXPECT_EQ(cluster.spare.desired().look_for(0).path(), "/runs/x/step-40");
  cluster.spare.AnswerPathRequests(/*there=*/true);
  other.AnswerPathRequests(/*there=*/false);
  cluster.harness.Advance(absl::Seconds(30));

  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING)
      << "the job has two ranks, and only one other host has the checkpoint";
  EXPECT_EQ(cluster.Get().generation(), 1u);
  std::vector<std::string> decisions = cluster.harness.Decisions(kJob);
  EXPECT_THAT(decisions, Contains(HasSubstr("/runs/x/step-40 is not on w4 (No such file or directory)")));
  EXPECT_EQ(std::count_if(decisions.begin(), decisions.end(),
                          [](const std::string& decision) { return decision.find("abandon: ") == 0; }),
            1);
  EXPECT_EQ(other.desired().look_for_size(), 0) << "the host has answered";

  cluster.first.Attach();
  cluster.harness.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster.first.desired().trainers_size(), 1) << "the original generation must continue";
  cluster.first.Disconnect();
  cluster.harness.Advance(absl::Seconds(65));
  other.AnswerPathRequests(/*there=*/true);
  cluster.spare.AnswerPathRequests(/*there=*/true);
  cluster.harness.Advance(absl::Seconds(1));
  EXPECT_EQ(cluster.Get().generation(), 2u) << "the folder is shared now";
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(StartsWith("abandon: host w1 is lost")));
}

// Regression: the job stayed STOPPING for ever, and counted against the quota of its namespace.
TEST(CoreLoss, UnreachableJobThatIsCancelled_IsAbandoned_WithoutItsCheckpoint) {
  LossCluster cluster(/*running=*/true, /*abandon_after_s=*/60);
  cluster.first.Save(Key(kJob, 1, 0), 40);
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Cancel(kJob);
  cluster.harness.Advance(absl::Seconds(55));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_STOPPING);

  cluster.harness.Advance(absl::Seconds(15));

  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_CANCELLED) << cluster.Get().reason();
}

TEST(CoreLoss, HostThatAnOperatorGivesUp_IsLostImmediately) {
  LossCluster cluster;
  cluster.spare.Attach();
  cluster.second.Disconnect();
  cluster.harness.SetHostState("w2", v1::SetHostRequest::ACTION_LOST, "burnt");
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RECOVERING);
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains("operator: host w2 is lost: the operator reported it: burnt"));
}

TEST(CoreLoss, RestartNow_OfAnUnreachableJob_DoesNotWaitForItsHosts) {
  LossCluster cluster;
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Advance(absl::Seconds(5));
  cluster.harness.RequestRestart(kJob);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_STOPPING) << "the job must wait for its hosts";
  cluster.harness.RequestRestart(kJob, /*immediately=*/true);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_QUEUED);
}

TEST(CoreLoss, UnevenHeartbeats_GiveAHostALongerLease) {
  LossCluster cluster;
  for (int i = 0; i < 40; ++i) {
    Tick tick;
    tick.contacts.push_back({cluster.first.session, cluster.harness.now});
    if (i % 4 == 0) tick.contacts.push_back({cluster.second.session, cluster.harness.now});
    cluster.harness.now += absl::Milliseconds(i % 2 == 0 ? 1'200 : 300);
    cluster.harness.Handle(std::move(tick));
  }
  const State& state = cluster.harness.core->state();
  EXPECT_GT(state.hosts.at(HostName("w2")).lease, state.options.lease);
  EXPECT_LE(state.hosts.at(HostName("w2")).lease, kLeaseGrowth * state.options.lease);
}

TEST(CoreAdoption, NothingIsDecided_BeforeEveryHostHasAttached) {
  LossCluster cluster;
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.first.Exit(Key(kJob, 1, 0), 1);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(cluster.Get().unconfirmed());
  EXPECT_THAT(
      cluster.harness.Decisions(kJob),
      Contains("adoption: rank 0 on w1 exited with code 1; what follows is decided once every host has attached "
               "or is lost"));

  cluster.second.Attach();
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RECOVERING);
  cluster.second.Apply();
  EXPECT_EQ(cluster.Get().generation(), 2u);
}

TEST(CoreAdoption, PendingFailure_SurvivesAnotherCoordinatorRestart) {
  LossCluster cluster;
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.first.Exit(Key(kJob, 1, 0), 1);
  cluster.harness.Restart();
  cluster.first.Attach();
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  cluster.second.Attach();
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(cluster.Get().reason(), HasSubstr("rank 0 on w1 exited with code 1"));
}

TEST(CoreAdoption, FailureWithAHostThatNeverReturns_IsDecidedAfterItsLease) {
  LossCluster cluster;
  cluster.spare.Attach();
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.spare.Disconnect();
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.spare.Attach();
  cluster.harness.Advance(absl::Seconds(10));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING) << "silence alone must end nothing";
  EXPECT_TRUE(cluster.Get().unconfirmed());
  cluster.first.Exit(Key(kJob, 1, 0), 1);
  cluster.harness.Advance(absl::Milliseconds(200));

  EXPECT_EQ(cluster.Get().generation(), 2u);
  EXPECT_EQ(cluster.Get().ranks(1).host(), "w3");
  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(StartsWith("host_lost: host w2 is lost")));
}

TEST(CoreAdoption, LostRanks_StayLostAfterACoordinatorRestart) {
  LossCluster cluster;
  cluster.second.Disconnect();
  cluster.first.ReportBroken(Key(kJob, 1, 0), 3);
  cluster.harness.Advance(absl::Seconds(4));
  cluster.first.Apply();
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RECOVERING) << "the job must wait for a slot";
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.spare.Attach();
  EXPECT_EQ(cluster.Get().generation(), 2u);
}

TEST(CoreAdoption, GenerationAboveTheRecordedOne_HoldsTheJob_AndEndsNothing) {
  LossCluster cluster;
  std::map<std::string, std::string> copy = cluster.harness.records;
  cluster.first.Kill(Key(kJob, 1, 0), 9);
  cluster.second.Apply();
  cluster.Run();
  ASSERT_EQ(cluster.Get().generation(), 2u);
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.records = copy;
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.second.Attach();
  cluster.harness.Advance(absl::Seconds(30));

  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(cluster.Get().reason(), HasSubstr("runs generation 2 of the job, and this coordinator's store knows 1"));
  ASSERT_EQ(cluster.first.desired().trainers_size(), 1);
  EXPECT_EQ(cluster.first.desired().trainers(0).key().generation(), 2u);
  EXPECT_TRUE(absl::IsFailedPrecondition(cluster.harness.Pause(kJob).status));

  cluster.harness.Cancel(kJob);
  EXPECT_EQ(cluster.first.desired().trainers_size(), 0);
  cluster.first.Apply();
  cluster.second.Apply();
  cluster.harness.Advance(absl::Seconds(15));
  cluster.first.Apply();
  cluster.second.Apply();
  cluster.harness.Advance(absl::Seconds(2));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_CANCELLED) << cluster.Get().reason();
}

TEST(CoreTimes, Time_DoesNotPassWithoutACoordinator_AndWallClockChangesHaveNoEffect) {
  CoreClock clock;
  absl::Time start = absl::FromUnixSeconds(1'700'000'000);
  CoreTime first = clock.Advance(start, start);
  CoreTime next = clock.Advance(start + absl::Milliseconds(100), start - absl::Hours(5));
  EXPECT_EQ(next.now - first.now, absl::Milliseconds(100));
  EXPECT_EQ(next.wall, start - absl::Hours(5));
  CoreTime after = clock.Advance(start + absl::Seconds(20), start);
  EXPECT_EQ(after.now - next.now, CoreClock::kAwayStep);
  EXPECT_EQ(after.steady - next.steady, absl::Milliseconds(19'900));
  EXPECT_EQ(clock.FromSteady(start + absl::Seconds(20)), after.now);
  EXPECT_EQ(clock.FromSteady(start + absl::Seconds(21)), after.now) << "a contact is never in the future";
  EXPECT_EQ(clock.Advance(start + absl::Seconds(19), start).now, after.now) << "time never goes back";
}

TEST(CoreTimes, StoppedCoordinator_DoesNotCountHostsAsSilent_ButTheLedgerCountsTheTime) {
  LossCluster cluster;
  absl::Time steady = cluster.harness.now + absl::Seconds(20);
  cluster.harness.now += absl::Milliseconds(100);
  cluster.harness.Handle(Tick{}, CoreTime(cluster.harness.now, steady, steady));
  EXPECT_TRUE(cluster.harness.core->state().hosts.at(HostName("w2")).reachable);
  EXPECT_THAT(cluster.harness.log, Contains(HasSubstr("the coordinator was away for 19.9s")));
  EXPECT_THAT(cluster.harness.Notices(kJob), Contains(HasSubstr("the coordinator was away for 19.9s (stopped")));
  auto ledgers = cluster.harness.core->CountGoodput(steady);
  ASSERT_EQ(ledgers.size(), 1u);
  EXPECT_EQ(ledgers[0].second.train_ms(), 40'000u);
}

TEST(CoreTimes, TimeWithABlockedStore_IsReported_WhenItRecovers) {
  LossCluster cluster;
  CoreClock clock;
  clock.Advance(cluster.harness.now, cluster.harness.now);
  clock.HoldUp();
  cluster.harness.Handle(Tick{}, clock.Advance(cluster.harness.now + absl::Seconds(5), cluster.harness.now));

  EXPECT_THAT(cluster.harness.Notices(kJob),
              Contains(HasSubstr("the coordinator was held up for 4.9s by a store that accepted no records")));
  EXPECT_FALSE(clock.Advance(cluster.harness.now + absl::Seconds(9), cluster.harness.now).held_up);
}

TEST(CoreEnding, RankThatDoesNotExitAfterItsLastStep_IsKilled_AndTheJobHasSucceeded) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  host.Report(Key(kJob, 1, 0), 1, 10);
  host.Finish(Key(kJob, 1, 0), 10);
  v1::Fact fact;
  fact.mutable_finished()->set_step(10);
  host.ReportFact(Key(kJob, 1, 1), fact);
  harness.Advance(absl::Seconds(9));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  EXPECT_NE(host.desired().trainers_size(), 0);
  harness.Advance(absl::Seconds(2));
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoreEnding, HostThatDisconnectsAfterTheLastStep_IsNotWaitedForLong_AndNothingIsLost) {
  LossCluster cluster;
  cluster.first.Save(Key(kJob, 1, 0), 1'000);
  for (FakeHost* host : {&cluster.first, &cluster.second}) {
    v1::Fact fact;
    fact.mutable_finished()->set_step(1'000);
    host->ReportFact(Key(kJob, 1, host == &cluster.second), fact);
  }
  cluster.first.Report(Key(kJob, 1, 0), 1, 1'000);
  cluster.first.Exit(Key(kJob, 1, 0), 0);
  cluster.second.Disconnect();
  cluster.harness.Advance(limits::kStopGrace + absl::Seconds(1));
  cluster.first.Apply();
  cluster.harness.Advance(absl::Seconds(1));

  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_SUCCEEDED) << cluster.Get().reason();
  EXPECT_EQ(cluster.Get().restarts(), 0u);
  EXPECT_THAT(cluster.harness.Notices(kJob), Contains(HasSubstr("rank 1 on w2 (host unreachable)")));
  cluster.second.Attach();
  EXPECT_EQ(cluster.second.desired().trainers_size(), 0) << "the remaining rank there must be ended";
}

TEST(CoreEnding, RankThatCannotBeKilled_CountsAsEnded_AndKeepsItsSlot) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  host.Kill(Key(kJob, 1, 0), 9);
  host.applied = host.desired().revision();
  harness.Handle(RevisionApplied{host.session, host.applied});
  harness.Advance(absl::Seconds(29));
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("was killed by signal 9"));
  harness.Advance(absl::Seconds(2));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("waits for slots: 2 ranks requested, 1 of 2 slots free"));

  host.running.erase(FakeHost::Name(Key(kJob, 1, 1)));
  v1::Fact fact;
  fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_STOPPED);
  host.ReportFact(Key(kJob, 1, 1), fact);
  EXPECT_EQ(harness.Get(kJob).generation(), 2u) << "the trainer has ended after all";
}

}  // namespace
}  // namespace trainyard
