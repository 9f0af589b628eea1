// A store that was restored from an older copy, with the production core on a manual clock: the coordinator leaves
// trainers alone if the store does not know their generation (their job is held) or their job (an unknown job).
#include <gmock/gmock.h>

#include "tests/unit/coordinator/fake_host.h"
#include "tests/unit/coordinator/two_hosts.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using Cluster = TwoHosts;

TEST(CoreOlderStore, HeldJobWhoseTrainersHaveEnded_FreesItsSlots_AndContinues) {
  Cluster cluster;
  std::map<std::string, std::string> copy = cluster.harness.records;
  cluster.first.Kill(Key(kJob, 1, 0), 9);
  cluster.second.Apply();
  cluster.Run();
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.records = copy;
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.second.Attach();
  EXPECT_EQ(cluster.harness.HostOf("w1").slots_free(), 0u);
  const size_t lines = cluster.harness.log.size();
  const uint64_t revision = cluster.first.desired().revision();
  cluster.harness.Advance(absl::Minutes(5));
  EXPECT_LT(cluster.harness.log.size(), lines + 5) << "many lines were logged although nothing happened";
  EXPECT_LT(cluster.first.desired().revision(), revision + 5);

  cluster.first.FinishOnly(Key(kJob, 2, 0), 1'000);
  EXPECT_EQ(cluster.harness.HostOf("w1").slots_free(), 1u);
  EXPECT_EQ(cluster.Get().generation(), 1u) << "the job must not restart while its other rank runs";
  cluster.second.FinishOnly(Key(kJob, 2, 1), 1'000);

  EXPECT_THAT(cluster.harness.Decisions(kJob), Contains(HasSubstr("adoption: generation 2, which this coordinator's")));
  EXPECT_EQ(cluster.Get().generation(), 3u) << cluster.Get().reason();
  cluster.first.Apply();
  cluster.first.Restored(Key(kJob, 3, 0), 1'000, "a");
  cluster.Run();
  for (FakeHost* host : {&cluster.first, &cluster.second}) {
    host->FinishOnly(Key(kJob, 3, host == &cluster.second), 1'000);
  }
  cluster.harness.Advance(absl::Seconds(2));
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_SUCCEEDED) << cluster.Get().reason();
  EXPECT_EQ(cluster.Get().restarts(), 0u);
}

TEST(CoreOlderStore, GenerationThatWasHeld_IsNotUsedAgain_AfterACoordinatorRestart) {
  Cluster cluster;
  const std::map<std::string, std::string> copy = cluster.harness.records;
  cluster.first.Kill(Key(kJob, 1, 0), 9);
  cluster.second.Apply();
  cluster.Run();
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.records = copy;
  cluster.harness.Restart();
  for (FakeHost* host : {&cluster.first, &cluster.second}) {
    host->Attach();
    cluster.harness.SetHostState(host->name, v1::SetHostRequest::ACTION_CORDON);
  }
  cluster.first.FinishOnly(Key(kJob, 2, 0), 1'000);
  cluster.second.FinishOnly(Key(kJob, 2, 1), 1'000);
  ASSERT_EQ(cluster.Get().state(), v1::JOB_STATE_QUEUED) << cluster.Get().reason();

  cluster.harness.Restart();
  for (FakeHost* host : {&cluster.first, &cluster.second}) {
    host->Attach();
    cluster.harness.SetHostState(host->name, v1::SetHostRequest::ACTION_UNCORDON);
  }

  EXPECT_EQ(cluster.Get().generation(), 3u) << cluster.Get().reason();
}

TEST(CoreOlderStore, HeldJobThatWaits_IsPlaced_OnceItsHostIsForgotten) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  harness.Submit(MakeSpec(1), kJob);
  const std::map<std::string, std::string> copy = harness.records;
  first.Attach();
  BringToRunning(harness, first, kJob);
  first.Disconnect();
  harness.records = copy;
  harness.Restart();
  first.Attach();
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_QUEUED);
  first.Detach();
  harness.Advance(absl::Seconds(10));
  second.Attach();
  ASSERT_EQ(harness.Get(kJob).generation(), 0u) << "the job must be held while its trainer may run";

  const Reply reply = harness.SetHostState("w1", v1::SetHostRequest::ACTION_FORGET);

  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(harness.Get(kJob).generation(), 2u) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w2");
}

TEST(CoreOlderStore, RequestsToStopAndSave_HaveNumbersThatTheRanksHaveNotReceived) {
  Cluster cluster;
  const std::map<std::string, std::string> copy = cluster.harness.records;
  for (uint64_t request : {1, 2}) {
    cluster.harness.RequestSave(kJob);
    cluster.harness.Pause(kJob);
    ASSERT_EQ(cluster.first.desired().trainers(0).stop_request(), request);
    cluster.first.SaveFails(Key(kJob, 1, 0), 5, request);
    ASSERT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING) << cluster.Get().reason();
  }
  cluster.first.Disconnect();
  cluster.second.Disconnect();
  cluster.harness.records = copy;
  cluster.harness.Restart();
  cluster.first.Attach();
  cluster.second.Attach();

  cluster.harness.RequestSave(kJob);
  cluster.harness.Pause(kJob);

  ASSERT_EQ(cluster.first.desired().trainers_size(), 1);
  EXPECT_GT(cluster.first.desired().trainers(0).stop_request(), 2u);
  EXPECT_GT(cluster.first.desired().trainers(0).save_requests(), 2u);
  const uint64_t request = cluster.first.desired().trainers(0).stop_request();
  cluster.first.SaveFails(Key(kJob, 1, 0), 6, request);
  EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  cluster.harness.Pause(kJob);
  EXPECT_GT(cluster.first.desired().trainers(0).stop_request(), request);
}

// A job of one rank runs as generation 1 on w1. The coordinator's store is older than that, so that it has started the
// job as generation 1 on w2, too, before w1 attached.
struct NumberUsedAgain {
  NumberUsedAgain() {
    harness.Submit(MakeSpec(1), kJob);
    const std::map<std::string, std::string> copy = harness.records;
    first.Attach();
    BringToRunning(harness, first, kJob);
    first.Disconnect();
    harness.records = copy;
    harness.Restart();
    second.Attach();
    BringToRunning(harness, second, kJob);
    first.Attach();
  }

  Harness harness;
  FakeHost first{harness, "w1", 1, 11}, second{harness, "w2", 1, 22};
};

TEST(CoreOlderStore, NumberOfAGenerationThatWasUsedAgain_EndsTheNewerGroup_AndHoldsTheJob) {
  NumberUsedAgain world;
  world.second.Apply();
  world.first.Apply();
  world.harness.Advance(absl::Seconds(5));

  EXPECT_EQ(world.second.running.size(), 0u);
  EXPECT_EQ(world.first.running.size(), 1u);
  ASSERT_EQ(world.first.desired().trainers_size(), 1);
  EXPECT_THAT(world.harness.Get(kJob).reason(), HasSubstr("host w1 runs generation 1 of the job, and this coordinator "
                                                          "has started a group with this number on other hosts"));
  EXPECT_TRUE(absl::IsFailedPrecondition(world.harness.Pause(kJob).status));

  world.first.FinishOnly(Key(kJob, 1, 0), 10);
  EXPECT_EQ(world.harness.Get(kJob).generation(), 2u) << world.harness.Get(kJob).reason();
  EXPECT_EQ(world.harness.Get(kJob).restarts(), 0u);
}

TEST(CoreOlderStore, NumberOfAGenerationThatWasUsedAgain_DoesNotStopTheJob_IfTheCoordinatorRestarts) {
  NumberUsedAgain world;
  world.second.Apply();
  world.first.Disconnect();
  world.second.Disconnect();
  world.first.running.clear();  // it ends while no coordinator runs
  world.harness.Restart();
  world.first.Attach();
  world.second.Attach();

  EXPECT_EQ(world.harness.Get(kJob).generation(), 2u) << world.harness.Get(kJob).reason();
}

TEST(CoreOlderStore, CancelledJob_IsNotHeldAgain_IfTheHostOfItsTrainerAttachesAgain) {
  NumberUsedAgain world;
  world.harness.Cancel(kJob);
  world.first.Detach();
  world.first.Attach();
  EXPECT_EQ(world.first.desired().trainers_size(), 0);
  world.second.Apply();

  EXPECT_EQ(world.harness.StateOf(kJob), v1::JOB_STATE_CANCELLED) << world.harness.Get(kJob).reason();
}

TEST(CoreOlderStore, DaemonThatListsARankOfAnotherHost_HoldsNoJob_IfTheStoreKnowsItsGeneration) {
  for (const bool restarted : {false, true}) {
    Cluster cluster;
    if (restarted) {
      cluster.first.Disconnect();
      cluster.second.Disconnect();
      cluster.harness.Restart();
      cluster.first.Attach();
      cluster.second.Attach();
    }
    FakeHost wrong(cluster.harness, "w3", 1, 33);
    wrong.running["wrong"] = Key(kJob, 1, 0);
    wrong.Attach();

    EXPECT_EQ(wrong.desired().trainers_size(), 0);
    EXPECT_EQ(cluster.first.desired().trainers_size(), 1);
    EXPECT_EQ(cluster.Get().state(), v1::JOB_STATE_RUNNING);
  }
}

// The store is older than generations 2 to 7 of a job that may not restart. No trainer of them runs any more.
TEST(CoreOlderStore, RunFolderOfALaterGeneration_UsesUpNoRestart_AndTheJobContinuesAboveIt) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  harness.Submit(MakeSpec(1, /*max_restarts=*/0), kJob);
  host.Apply();
  host.Register(Key(kJob, 1, 0));
  v1::Fact fenced;
  fenced.mutable_refused()->set_message("checkpoint.dir /runs/a belongs to generation 7");
  fenced.mutable_refused()->set_later_generation(7);
  host.ReportFact(Key(kJob, 1, 0), fenced);
  host.Exit(Key(kJob, 1, 0), 3);

  EXPECT_EQ(harness.Get(kJob).generation(), 8u) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).restarts(), 0u);
  EXPECT_EQ(harness.Get(kJob).planned_restarts(), 7u);
  EXPECT_THAT(harness.Decisions(kJob), Contains(HasSubstr("belongs to generation 7; the store was restored from an "
                                                          "older copy; restarting from the beginning (not counted")));

  BringToRunning(harness, host, kJob);
  fenced.mutable_refused()->set_later_generation(9);
  host.ReportFact(Key(kJob, 8, 0), fenced);
  host.Exit(Key(kJob, 8, 0), 3);
  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_FAILED) << "a group that had the folder was fenced by another one";
}

TEST(CoreOlderStore, LaterGenerationThatIsNotPlausible_IsNotBelieved) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  harness.Submit(MakeSpec(1, /*max_restarts=*/1), kJob);
  host.Apply();
  v1::Fact fenced;
  fenced.mutable_refused()->set_later_generation(UINT64_MAX);
  host.ReportFact(Key(kJob, 1, 0), fenced);
  harness.Advance(absl::Seconds(1));
  host.Exit(Key(kJob, 1, 0), 3);

  EXPECT_EQ(harness.Get(kJob).generation(), 2u) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).restarts(), 1u);
}

// A job of one rank runs, and the coordinator's store is older than its submission.
struct UnknownJob {
  UnknownJob() : host(harness, "w1", 2, 11) {
    host.cluster = "cluster";
    host.Attach();
    older = harness.records;
    harness.Submit(MakeSpec(1), kJob);
    BringToRunning(harness, host, kJob);
    newer = harness.records;
    StartOn(older);
  }
  void StartOn(const std::map<std::string, std::string>& records) {
    host.Disconnect();
    harness.records = records;
    harness.Restart();
    host.Attach();
  }

  Harness harness;
  FakeHost host;
  std::map<std::string, std::string> older, newer;
};

TEST(CoreUnknownJobs, AreLeftAlone_KeepTheirSlots_AndAreReportedOnce) {
  UnknownJob world;
  world.host.Apply();
  world.host.Detach();
  world.host.Attach();

  EXPECT_EQ(world.host.running.size(), 1u);
  EXPECT_THAT(world.host.desired().unknown_jobs(), ::testing::ElementsAre(kJob));
  EXPECT_EQ(world.harness.HostOf("w1").slots_free(), 1u);
  EXPECT_THAT(world.harness.HostOf("w1").unknown_jobs(), ::testing::ElementsAre(kJob));
  EXPECT_THAT(world.harness.FoundIds("job0"), ::testing::ElementsAre(kJob));
  EXPECT_THAT(std::string(world.harness.Pause(kJob).status.message()), HasSubstr("job job00000001 runs on w1, but"));
  EXPECT_TRUE(absl::IsAlreadyExists(world.harness.Submit(MakeSpec(1), kJob).status));
  std::vector<std::string> notices = world.harness.ClusterNotices();
  EXPECT_EQ(
      std::count_if(notices.begin(), notices.end(),
                    [](const std::string& text) { return text.find("trainctl cancel job00000001") != text.npos; }),
      1);

  world.host.Save(Key(kJob, 1, 0), 10);
  world.host.FinishOnly(Key(kJob, 1, 0), 10);
  EXPECT_EQ(world.harness.HostOf("w1").slots_free(), 2u);
  EXPECT_EQ(world.host.desired().unknown_jobs_size(), 0);
  EXPECT_THAT(world.harness.ClusterNotices(), Contains(HasSubstr("has ended; its slots are free")));
}

TEST(CoreUnknownJobs, Cancel_EndsThem_AlsoAfterACoordinatorRestart) {
  UnknownJob world;
  EXPECT_TRUE(absl::IsFailedPrecondition(world.harness.CancelSaved(kJob).status));
  Reply reply = world.harness.Cancel(kJob);
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(std::get<v1::Job>(reply.response).state(), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(world.host.desired().unknown_jobs_size(), 0);
  world.host.Disconnect();
  world.harness.Restart();
  world.host.Attach();
  EXPECT_EQ(world.host.desired().unknown_jobs_size(), 0);
  EXPECT_EQ(world.harness.HostOf("w1").slots_free(), 1u) << "the trainer must use its slot until it has ended";
  world.host.Apply();
  EXPECT_EQ(world.host.running.size(), 0u);
  EXPECT_EQ(world.harness.HostOf("w1").slots_free(), 2u);
  EXPECT_TRUE(absl::IsNotFound(world.harness.Cancel(kJob).status));
}

TEST(CoreUnknownJobs, Cancel_IsRecordedWithItsCaller) {
  UnknownJob world;
  CancelJob event{CallId(9'001), JobId(kJob), "enough"};
  event.by = "the operator at 127.0.0.1:5012";

  world.harness.Handle(std::move(event));

  EXPECT_THAT(world.harness.ClusterNotices(),
              Contains("cancel of job job00000001 requested by the operator at 127.0.0.1:5012"));
}

TEST(CoreUnknownJobs, NewerStore_AdoptsTheJobAgain_AlsoIfItHasEndedMeanwhile) {
  UnknownJob world;
  world.host.Save(Key(kJob, 1, 0), 10);
  world.host.FinishOnly(Key(kJob, 1, 0), 10);
  world.StartOn(world.newer);
  world.harness.Advance(absl::Seconds(3));
  EXPECT_EQ(world.harness.Get(kJob).generation(), 2u)
      << "the job must run again, because the newer store has neither its checkpoint nor its end";
  world.host.Apply();
  world.host.Restored(Key(kJob, 2, 0), 10, "a");
  BringToRunning(world.harness, world.host, kJob, 11);
  world.host.FinishOnly(Key(kJob, 2, 0), 10);
  EXPECT_EQ(world.harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED) << world.harness.Get(kJob).reason();
}

TEST(CoreUnknownJobs, TrainersOfForgottenJobs_AndOfOtherClusters_AreNotLeftAlone) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11), away(harness, "w2", 1, 22);
  host.cluster = away.cluster = "cluster";
  away.Attach();
  harness.Submit(MakeSpec(1), kJob);
  away.Apply();
  away.Disconnect();
  harness.SetHostState("w2", v1::SetHostRequest::ACTION_LOST);
  harness.Cancel(kJob);
  for (int i = 0; i < 30; ++i) {
    harness.Submit(MakeSpec(4), absl::StrCat("job000001", 10 + i));
    harness.Cancel(absl::StrCat("job000001", 10 + i));
  }
  ASSERT_EQ(harness.Get(kJob).job_id(), "") << "the coordinator must have forgotten the job";
  harness.Advance(absl::Seconds(10));
  harness.Restart();

  away.Attach();
  EXPECT_EQ(away.desired().unknown_jobs_size(), 0);
  EXPECT_EQ(harness.HostOf("w2").unknown_jobs_size(), 0);
  host.running["other"] = Key("job0other", 1, 0);
  host.cluster = "";  // in its hello, a daemon with --adopt-cluster names no cluster
  host.Attach();
  EXPECT_EQ(host.desired().unknown_jobs_size(), 0);
}

TEST(CoreUnknownJobs, DaemonOfAnEarlierVersion_ThatWouldEndThem_IsRefused) {
  UnknownJob world;
  world.host.Disconnect();
  world.harness.Restart();
  world.host.protocol = limits::kUnknownJobsProtocol - 1;
  world.host.Attach();
  ASSERT_TRUE(world.host.refused());
  EXPECT_TRUE(absl::IsUnavailable(world.host.refusal())) << world.host.refusal();
  EXPECT_THAT(std::string(world.host.refusal().message()),
              HasSubstr("its daemon, of an earlier version, would end the job"));
}

}  // namespace
}  // namespace trainyard
