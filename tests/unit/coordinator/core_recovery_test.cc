// Failures, restarts, fences and a restarted coordinator, with the production core on a manual clock.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct RecoveringHost {
  explicit RecoveringHost(uint32_t ranks = 2, uint32_t max_restarts = 10) : host(harness, "w1", ranks, 11) {
    host.Attach();
    harness.Submit(MakeSpec(ranks, max_restarts), kJob);
  }
  v1::Job Get() { return harness.Get(kJob); }

  Harness harness;
  FakeHost host;
};

TEST(CoreRecovery, KilledRank_RestartsTheGroupFromTheNewestCheckpoint) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  one.host.Save(Key(kJob, 1, 0), 4);

  one.host.Kill(Key(kJob, 1, 1), 9);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(one.Get().reason(),
            "rank 1 on w1 was killed by signal 9 (SIGKILL); restarting from step 4 (restart 1 of 10)");
  EXPECT_EQ(one.host.desired().trainers_size(), 0);
  EXPECT_THAT(one.host.desired().jobs(), ElementsAre(kJob)) << "the next group may resume from the snapshots";
  one.host.Apply(/*start=*/false);

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.Get().generation(), 2u);
  EXPECT_EQ(one.Get().restarts(), 1u);
  ASSERT_EQ(one.host.desired().trainers_size(), 2);
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 4u);
  EXPECT_FALSE(one.host.desired().trainers(0).resume()) << "no user requested to resume from another job's checkpoints";

  BringToRunning(one.harness, one.host, kJob, 5);
  one.host.Report(Key(kJob, 2, 0), 5, 10);
  one.host.Finish(Key(kJob, 2, 0), 10);
  one.host.Finish(Key(kJob, 2, 1), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(one.harness.CountSteps(kJob), 10u) << "step 5 was made twice and is published once";
  EXPECT_EQ(one.host.desired().jobs_size(), 0);
}

TEST(CoreRecovery, ExhaustedRestarts_FailTheJobWithTheCause) {
  RecoveringHost one(1, 2);
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    BringToRunning(one.harness, one.host, kJob);
    one.host.Exit(Key(kJob, generation, 0), 7);
    one.harness.Advance(absl::Seconds(1));
  }

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(one.Get().restarts(), 2u);
  EXPECT_THAT(one.Get().reason(), HasSubstr("rank 0 on w1 exited with code 7"));
  EXPECT_THAT(one.Get().reason(), HasSubstr("all 2 restarts are used up"));
}

TEST(CoreRecovery, Refusal_FailsTheJobImmediately_WithItsMessage) {
  RecoveringHost one;
  one.host.Apply();
  one.host.Register(Key(kJob, 1, 0));
  v1::Fact fact;
  fact.mutable_refused()->set_message("/data: no such file");
  one.host.ReportFact(Key(kJob, 1, 0), fact);
  one.host.Exit(Key(kJob, 1, 0), 2);
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(one.Get().restarts(), 0u);
  EXPECT_EQ(one.Get().reason(), "rank 0 on w1 refused the job: /data: no such file");
}

TEST(CoreRecovery, RefusalAfterABrokenCollective_IsTheCause) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.ReportBroken(Key(kJob, 1, 0), 3);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(one.host.desired().trainers_size(), 2) << "the report of the cause may still arrive";

  v1::Fact fact;
  fact.mutable_refused()->set_message("disk gone");
  one.host.ReportFact(Key(kJob, 1, 1), fact);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_STOPPING);
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(one.Get().reason(), HasSubstr("disk gone"));
}

TEST(CoreRecovery, BrokenCollectiveWithoutAnyOtherCause_RestartsAfterAShortWait) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.ReportBroken(Key(kJob, 1, 0), 3);
  one.host.Exit(Key(kJob, 1, 0), 3);

  one.harness.Advance(absl::Milliseconds(400));
  EXPECT_EQ(one.host.desired().trainers_size(), 0);
  one.host.Apply(/*start=*/false);

  EXPECT_EQ(one.Get().generation(), 2u);
  EXPECT_THAT(one.harness.records.at("job/job00000001"), HasSubstr("test-job"));
}

TEST(CoreRecovery, WrongDigest_FailsTheJob_AndNamesTheRank) {
  RecoveringHost one;
  one.host.Apply();
  one.host.Register(Key(kJob, 1, 1), "deadbeef");
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(one.Get().reason(), HasSubstr("rank 1 on w1 has a configuration that differs"));
  EXPECT_THAT(one.Get().reason(), HasSubstr("deadbeef"));
}

TEST(CoreRecovery, ExitWithZeroBeforeTheLastStep_IsAFailure) {
  RecoveringHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Exit(Key(kJob, 1, 0), 0);
  EXPECT_THAT(one.Get().reason(), HasSubstr("generation 2"));
  BringToRunning(one.harness, one.host, kJob);

  one.host.Finish(Key(kJob, 2, 0), 4, /*stopped=*/true);  // an external SIGTERM

  EXPECT_NE(one.Get().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_NE(one.Get().state(), v1::JOB_STATE_CANCELLED);
}

TEST(CoreRecovery, TrainerThatCannotBeStarted_FailsTheJob) {
  RecoveringHost one(1);
  v1::Fact fact;
  fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  fact.mutable_exited()->set_message("exec: no such file");
  one.host.ReportFact(Key(kJob, 1, 0), fact);

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(one.Get().reason(), HasSubstr("exec: no such file"));
}

TEST(CoreRecovery, GroupThatDoesNotForm_IsAFailureThatNamesTheMissingRanks) {
  RecoveringHost one;
  one.host.Apply();
  one.host.Register(Key(kJob, 1, 0));
  one.host.Ready(Key(kJob, 1, 0));

  one.harness.Advance(absl::Seconds(119));
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_STARTING);
  one.harness.Advance(absl::Seconds(2));

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(one.Get().reason(), HasSubstr("not ready: rank 1 on w1"));
}

TEST(CoreRecovery, RepeatedFailuresWithoutAStep_WaitLongerEachTime) {
  RecoveringHost one(1);
  one.host.Apply();
  one.host.Exit(Key(kJob, 1, 0), 1);
  EXPECT_EQ(one.Get().generation(), 2u) << "the first restart is immediate";
  one.host.Apply();
  one.host.Exit(Key(kJob, 2, 0), 1);
  EXPECT_EQ(one.Get().generation(), 2u);
  one.harness.Advance(absl::Milliseconds(300));
  EXPECT_EQ(one.Get().generation(), 3u);
  one.host.Apply();
  one.host.Exit(Key(kJob, 3, 0), 1);
  one.harness.Advance(absl::Milliseconds(300));
  EXPECT_EQ(one.Get().generation(), 3u);
  one.harness.Advance(absl::Milliseconds(300));
  EXPECT_EQ(one.Get().generation(), 4u);
}

TEST(CoreRecovery, RestoreWithFallback_RemovesTheUnusableCheckpointFromTheRecord) {
  RecoveringHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 2);
  one.host.Save(Key(kJob, 1, 0), 4);
  one.host.Kill(Key(kJob, 1, 0), 9);
  one.host.Apply(/*start=*/false);
  one.host.Restored(Key(kJob, 2, 0), 2, "hash-2-1");

  EXPECT_EQ(one.Get().checkpoints_size(), 1);
  EXPECT_EQ(one.Get().checkpoints(0).step(), 2u);
}

TEST(CoreRecovery, SavedButUnreportedSteps_AreReportedAsMissing) {
  RecoveringHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 3);
  one.host.Kill(Key(kJob, 1, 0), 9);
  one.host.Apply(/*start=*/false);
  ASSERT_EQ(one.Get().generation(), 2u);

  one.host.Restored(Key(kJob, 2, 0), 5, "a");

  EXPECT_THAT(one.harness.Notices(kJob), ::testing::Contains(HasSubstr("reports of steps 4 to 5 did not arrive")));
}

TEST(CoreFencing, FactsOfAnOldGeneration_AreAcknowledgedAndChangeNothing) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Kill(Key(kJob, 1, 1), 9);
  one.host.Apply(/*start=*/false);
  ASSERT_EQ(one.Get().generation(), 2u);

  one.host.Save(Key(kJob, 1, 0), 8);
  one.host.Report(Key(kJob, 1, 0), 6, 9);
  one.host.Kill(Key(kJob, 1, 0), 9);

  EXPECT_EQ(one.Get().checkpoints_size(), 0);
  EXPECT_EQ(one.harness.CountSteps(kJob), 0u);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.harness.acks[one.host.session], one.host.sequence);
  EXPECT_THAT(one.harness.log, ::testing::Contains(HasSubstr("the job is at generation 2")));
}

TEST(CoreFencing, RepeatedFact_CountsOnce) {
  RecoveringHost one(1);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 4);
  one.host.sequence -= 1;  // the acknowledgement was lost, and the daemon repeats the fact
  one.host.Save(Key(kJob, 1, 0), 4);
  EXPECT_EQ(one.Get().checkpoints_size(), 1);
  EXPECT_EQ(one.harness.acks[one.host.session], one.host.sequence);

  one.host.Detach();
  one.host.Attach();
  EXPECT_EQ(one.harness.welcomes[one.host.session].acked_fact(), one.host.sequence);
}

TEST(CoreFencing, SecondDaemonOfAHost_IsRefusedWhileTheFirstRuns_ThenTakesOver) {
  RecoveringHost one;
  FakeHost twin(one.harness, "w1", 2, 77);
  twin.Attach();
  ASSERT_TRUE(twin.refused());
  EXPECT_TRUE(absl::IsAlreadyExists(twin.refusal()));
  twin.Disconnect();

  one.host.Disconnect();
  one.harness.Advance(absl::Seconds(4));
  twin.Attach();
  EXPECT_FALSE(twin.refused());
  EXPECT_TRUE(absl::IsCancelled(one.harness.ended_sessions.at(one.host.session)));

  one.host.Attach();
  ASSERT_TRUE(one.host.refused());
  EXPECT_TRUE(absl::IsAborted(one.host.refusal())) << "a newer daemon has attached";
}

TEST(CoreFencing, HostWithTrainersOfAnotherCluster_IsNotOrderedToEndThem) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.cluster = "theirs";
  host.running["other.g1.r0"] = Key("otherjob001", 1, 0);
  host.Attach();
  ASSERT_TRUE(host.refused());
  EXPECT_TRUE(absl::IsUnavailable(host.refusal()));
  EXPECT_THAT(std::string(host.refusal().message()), HasSubstr("1 trainer of cluster theirs"));

  host.running.clear();
  host.Attach();
  EXPECT_FALSE(host.refused()) << "an idle daemon may change its cluster";
}

TEST(CoreFencing, HostWhoseTrainersOfAnotherClusterHaveEnded_IsAccepted_AndTheirExitsFreeTheirSlots) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.cluster = "theirs";
  const v1::TrainerKey key = Key("otherjob001", 1, 0);
  host.running[FakeHost::Name(key)] = key;
  host.ended.insert(FakeHost::Name(key));

  host.Attach();

  ASSERT_FALSE(host.refused());
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_QUEUED) << "a trainer uses its slot until its exit is reported";
  host.Exit(key, 1);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED) << harness.Get(kJob).reason();
}

TEST(CoreFencing, WrongProtocol_IsRefused) {
  Harness harness;
  AttachHost attach{harness.NewSession(), {}, "peer"};
  attach.hello.set_protocol(limits::kProtocol + 1);
  attach.hello.set_host("w1");
  attach.hello.set_incarnation(1);
  attach.hello.set_slots(1);
  harness.Handle(attach);
  ASSERT_EQ(harness.ended_sessions.size(), 1u);
  EXPECT_TRUE(absl::IsFailedPrecondition(harness.ended_sessions.begin()->second));
}

TEST(CoreStore, Values_AreWriteOnce_SentToEveryHostOfTheGeneration_AndSealed) {
  RecoveringHost one;
  Harness& harness = one.harness;
  const SessionId session = one.host.session;
  EXPECT_TRUE(harness.Put(session, 1, kJob, "a", "1").ok());
  EXPECT_TRUE(harness.Put(session, 1, kJob, "a", "1").ok()) << "a repeated put";
  EXPECT_TRUE(absl::IsAlreadyExists(harness.Put(session, 1, kJob, "a", "2")));
  EXPECT_TRUE(absl::IsAborted(harness.Put(session, 2, kJob, "b", "1"))) << "another generation";
  EXPECT_TRUE(absl::IsAborted(harness.Put(session, 1, "job99999", "b", "1"))) << "no such job";
  EXPECT_TRUE(absl::IsInvalidArgument(harness.Put(session, 1, kJob, "", "1")));
  EXPECT_TRUE(
      absl::IsResourceExhausted(harness.Put(session, 1, kJob, "big", std::string(limits::kStoreValueBytes + 1, 'x'))));
  ASSERT_EQ(harness.values[session].size(), 1u);
  EXPECT_EQ(harness.values[session][0]->value(), "1");

  BringToRunning(harness, one.host, kJob);

  EXPECT_TRUE(absl::IsFailedPrecondition(harness.Put(session, 1, kJob, "b", "1")));
  EXPECT_TRUE(harness.Put(session, 1, kJob, "a", "1").ok()) << "a repeated put, also after the seal";
  EXPECT_EQ(harness.values[session].size(), 1u);
}

TEST(CoreStore, PutByAHostWithoutRanks_OrOnAnOldStream_ChangesNothing) {
  RecoveringHost one;
  FakeHost other(one.harness, "w2", 1, 22);
  other.Attach();
  EXPECT_TRUE(absl::IsAborted(one.harness.Put(other.session, 1, kJob, "a", "1")));

  const SessionId before = one.host.session;
  one.host.Attach();
  one.harness.Put(before, 1, kJob, "a", "1").IgnoreError();

  EXPECT_TRUE(one.harness.values.empty()) << "a put on an ended stream changes nothing";
}

TEST(CoreStore, ReattachedHost_GetsAllValues) {
  RecoveringHost one;
  one.host.Apply();
  EXPECT_TRUE(one.harness.Put(one.host.session, 1, kJob, "a", "1").ok());
  EXPECT_TRUE(one.harness.Put(one.host.session, 1, kJob, "b", "2").ok());

  one.host.Detach();
  one.host.Attach();

  EXPECT_EQ(one.harness.values[one.host.session].size(), 2u);
}

TEST(CoreStore, EndOfAGeneration_EndsItsStoreImmediately) {
  RecoveringHost one;
  one.host.Apply();
  EXPECT_TRUE(one.harness.Put(one.host.session, 1, kJob, "a", "1").ok());

  one.host.Kill(Key(kJob, 1, 0), 11);

  EXPECT_TRUE(absl::IsAborted(one.harness.Put(one.host.session, 1, kJob, "b", "1")));
  one.harness.values.clear();
  one.host.Attach();
  EXPECT_TRUE(one.harness.values.empty()) << "values of an ended generation are not sent";
}

TEST(CoreRestart, RunningJob_IsUnconfirmedUntilItsHostsAttach_ThenContinues) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  one.host.Save(Key(kJob, 1, 0), 4);
  one.harness.Advance(absl::Seconds(2));
  one.host.Disconnect();

  one.harness.Restart();
  EXPECT_TRUE(one.Get().unconfirmed());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(one.Get().checkpoints_size(), 1);
  one.host.Attach();

  EXPECT_FALSE(one.Get().unconfirmed());
  ASSERT_EQ(one.host.desired().trainers_size(), 2);
  EXPECT_TRUE(one.host.desired().trainers(0).go());
  EXPECT_EQ(one.harness.welcomes[one.host.session].acked_fact(), one.host.sequence);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  EXPECT_EQ(one.harness.CountSteps(kJob), 10u) << "including steps 1 to 5, which were published before the restart";
  size_t published = 0;
  for (const JobPublished& publication : one.harness.published) published += publication.event->has_step() ? 1 : 0;
  EXPECT_EQ(published, 10u) << "both coordinators together publish each step once, and metrics count what is published";
  one.host.Finish(Key(kJob, 1, 0), 10);
  one.host.Finish(Key(kJob, 1, 1), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_SUCCEEDED);

  one.harness.Restart();
  std::vector<EventPtr> events = one.harness.WatchFrom(kJob, 0);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()->state().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(one.harness.CountSteps(kJob), 10u);
}

TEST(CoreRestart, NothingIsStarted_UntilEveryHostHasAttached) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11);
  FakeHost second(harness, "w2", 1, 22);
  first.Attach();
  second.Attach();
  harness.Submit(MakeSpec(2), kJob);
  first.Disconnect();
  second.Disconnect();
  harness.Restart();

  first.Attach();
  EXPECT_EQ(first.desired().trainers_size(), 0);
  second.Attach();

  EXPECT_EQ(first.desired().trainers_size(), 1);
  EXPECT_EQ(second.desired().trainers_size(), 1);
}

TEST(CoreRestart, DaemonThatReturnsWithoutATrainer_HasLostTheTrainer) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.running.clear();
  one.host.ReplaceDaemon();
  EXPECT_EQ(one.host.desired().trainers_size(), 0)
      << "the old trainer may still report its exit, so no group starts yet";

  one.harness.Advance(absl::Milliseconds(1200));

  EXPECT_EQ(one.Get().generation(), 2u);
  EXPECT_EQ(one.Get().restarts(), 1u);
}

TEST(CoreRestart, RestartedDaemonOfAHost_IsReportedToItsJobs) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Detach();
  one.host.Attach();  // the same daemon dials again: no new event
  one.host.ReplaceDaemon();

  EXPECT_THAT(one.harness.Decisions(kJob), Contains("adoption: a new daemon of host w1 adopted ranks 0, 1").Times(1));
  EXPECT_EQ(one.Get().generation(), 1u);
}

TEST(CoreHealth, UnreachableHost_DoesNotEndARunningJob) {
  RecoveringHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Disconnect();
  one.harness.Advance(absl::Seconds(60));
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_FALSE(one.harness.core->state().hosts.at(HostName("w1")).reachable);

  one.host.Attach();
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(one.host.desired().trainers_size(), 2);
}

TEST(CoreHealth, EndOfAGeneration_WaitsForAnUnreachableHostOnlyUntilItsLeaseExpires) {
  Harness harness;
  FakeHost first(harness, "w1", 2, 11);
  FakeHost second(harness, "w2", 1, 22);
  first.Attach();
  second.Attach();
  harness.Submit(MakeSpec(3), kJob);
  first.Apply();
  second.Apply();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    FakeHost& host = rank < 2 ? first : second;
    host.Register(Key(kJob, 1, rank));
    host.Ready(Key(kJob, 1, rank));
  }
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  second.Disconnect();
  first.Kill(Key(kJob, 1, 0), 9);
  first.Apply();
  EXPECT_EQ(harness.Get(kJob).generation(), 1u);

  harness.Advance(absl::Seconds(4));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("waits for slots: 3 ranks requested, 2 of 2 slots free"));

  FakeHost third(harness, "w3", 1, 33);
  third.Attach();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w1") << "ranks stay on their hosts";
  EXPECT_EQ(harness.Get(kJob).ranks(2).host(), "w3");

  // The lost host comes back: its old trainers are ended.
  second.Attach();
  second.Apply();
  EXPECT_TRUE(second.running.empty());
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

}  // namespace
}  // namespace trainyard
