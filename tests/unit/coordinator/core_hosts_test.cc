// Operators' requests about hosts, and jobs whose hosts are refused, drained or lost.
#include <gmock/gmock.h>

#include "common/exit_codes.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Rank 0 on w1, rank 1 on w2; both run.
struct ServingHosts {
  ServingHosts() : first(harness, "w1", 1, 11), second(harness, "w2", 1, 22) {
    first.Attach();
    second.Attach();
    harness.Submit(MakeSpec(2), kJob);
    first.Apply();
    second.Apply();
    for (FakeHost* host : {&first, &second}) {
      host->Register(Key(kJob, 1, host == &second));
      host->Ready(Key(kJob, 1, host == &second));
    }
  }

  Harness harness;
  FakeHost first, second;
};

TEST(CoreHosts, PauseAndDrainNow_GiveUpUnreachableHosts) {
  for (bool drain : {false, true}) {
    ServingHosts two;
    ASSERT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
    two.second.Disconnect();
    two.harness.Advance(absl::Seconds(4));
    drain ? two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_DRAIN, "", /*immediately=*/true)
          : two.harness.Pause(kJob, /*immediately=*/true);
    two.first.Apply();

    EXPECT_EQ(two.harness.StateOf(kJob), drain ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_PAUSED);
    EXPECT_THAT(two.harness.Decisions(kJob), Contains(HasSubstr("host w2 is lost: the operator requested a")));
    EXPECT_EQ(two.harness.Get(kJob).restarts(), 0u);
  }
}

// Rank 1 has finished, but its host is lost together with the coordinator, before it could report its exit.
TEST(CoreHosts, FailureAfterTheLastStep_IsDecided_AlsoIfAHostOfTheJobNeverAttachesToTheNextCoordinator) {
  ServingHosts two;
  v1::Fact fact;
  fact.mutable_finished()->set_step(10);
  two.second.ReportFact(Key(kJob, 1, 1), fact);
  two.first.Disconnect();
  two.second.Disconnect();
  two.harness.Restart();
  two.first.Attach();
  two.first.FinishOnly(Key(kJob, 1, 0), 10, /*stopped=*/false, "No space left on device");
  ASSERT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_RUNNING) << "nothing is decided before w2 has attached or is lost";

  two.harness.Advance(absl::Seconds(10));

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_FAILED);
  EXPECT_THAT(two.harness.Get(kJob).reason(), HasSubstr("could not save step 10, the last one: No space left"));
}

// A daemon whose disk was full has kept its newer facts in memory only, and was killed.
TEST(CoreHosts, RestoreThatIsReportedAgain_FromAnOlderOutbox_RemovesNoLaterCheckpoint) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  RunJobOn(host);
  host.Save(Key(kJob, 1, 0), 2);
  host.Kill(Key(kJob, 1, 0), 9);
  host.Apply(/*start=*/false);
  host.Restored(Key(kJob, 2, 0), 2, "hash-2-1");
  BringToRunning(harness, host, kJob, 3);
  host.Save(Key(kJob, 2, 0), 4);

  host.Restored(Key(kJob, 2, 0), 2, "hash-2-1");

  const v1::Job job = harness.Get(kJob);
  ASSERT_EQ(job.checkpoints_size(), 2);
  EXPECT_EQ(job.checkpoints(1).step(), 4u);
  EXPECT_THAT(harness.Notices(kJob), ::testing::Not(Contains(HasSubstr("could not be used"))));
}

TEST(CoreHosts, PauseWithoutNow_WaitsForAnUnreachableHost) {
  ServingHosts two;
  two.second.Disconnect();
  two.harness.Advance(absl::Seconds(4));
  two.harness.Pause(kJob);
  two.harness.Advance(absl::Seconds(4));
  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_STOPPING);
}

TEST(CoreHosts, Forget_IsRefusedWithAllReasons_AndIsPermanentOnceItSucceeds) {
  ServingHosts two;
  Reply reply = two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_FORGET);
  EXPECT_TRUE(absl::IsFailedPrecondition(reply.status));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("its daemon is attached from ipv4:127.0.0.1:1"));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("job job00000001 has rank 1 there"));
  EXPECT_TRUE(absl::IsNotFound(two.harness.SetHostState("w3", v1::SetHostRequest::ACTION_FORGET).status));

  two.harness.Pause(kJob);
  two.first.Save(Key(kJob, 1, 0), 4);
  two.first.Finish(Key(kJob, 1, 0), 4, true);
  two.second.Finish(Key(kJob, 1, 1), 4, true);
  ASSERT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  two.second.Detach();
  EXPECT_THAT(std::string(two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_FORGET).status.message()),
              HasSubstr("its lease has not expired"));
  two.harness.Advance(absl::Seconds(4));
  reply = two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_FORGET, "sold");
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(std::get<v1::HostStatus>(reply.response).name(), "w2");

  for (bool again : {false, true}) {
    if (again) two.harness.Restart();
    EXPECT_EQ(two.harness.core->state().hosts.size(), 1u);
    EXPECT_EQ(two.harness.core->CountTotals().hosts_unreachable, 0u);
    EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  }
  two.first.Attach();
  two.harness.Resume(kJob);
  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_QUEUED);
  two.second.Attach();
  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PLACED) << "a forgotten host that attaches again is a new host";
}

TEST(CoreHosts, ReportsOfAForgottenHost_ChangeNothing) {
  ServingHosts two;
  two.second.Detach();
  two.harness.Advance(absl::Seconds(4));
  two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_LOST);
  two.first.Apply();
  ASSERT_TRUE(two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_FORGET).status.ok());
  two.second.Attach();
  v1::Fact fact;
  fact.mutable_started()->set_pid(7);
  two.second.ReportFact(Key(kJob, 1, 1), fact);

  EXPECT_NE(two.harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(two.harness.core->Check().ok()) << two.harness.core->Check();
}

// Regression: slots of the new host counted as kept for the job that ran on the forgotten host, although they were
// free. They were freed once more when this job started again, so another job got the slot that it had just taken.
TEST(CoreHosts, NewHostWithTheNameOfAForgottenOne_KeepsNoSlots) {
  ServingHosts two;
  two.harness.Submit(MakeSpec(1), "job0000wait1");
  two.second.Detach();
  two.harness.Advance(absl::Seconds(4));
  two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_LOST);
  two.first.Apply();
  ASSERT_TRUE(two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_FORGET).status.ok());
  two.second.running.clear();

  two.second.Attach();

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PLACED) << two.harness.Get(kJob).reason();
  EXPECT_EQ(two.harness.StateOf("job0000wait1"), v1::JOB_STATE_QUEUED);
}

TEST(CoreHosts, HostWithoutTheRecordedCheckpoint_IsAvoided_AndTheJobWaits_WithoutUsingARestart) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  first.Attach();
  v1::JobSpec spec = MakeSpec(1);
  spec.mutable_recovery()->set_max_restarts(1);
  harness.Submit(spec, kJob);
  BringToRunning(harness, first, kJob);
  first.Save(Key(kJob, 1, 0), 40);
  second.Attach();
  first.Disconnect();
  harness.Advance(absl::Seconds(4));
  harness.SetHostState("w1", v1::SetHostRequest::ACTION_LOST);
  second.Apply();
  ASSERT_EQ(harness.Get(kJob).generation(), 2u);

  v1::Fact refused;
  refused.mutable_refused()->set_message("the checkpoint of step 40 that was recorded is not in /runs/a");
  refused.mutable_refused()->set_checkpoint_missing(true);
  second.ReportFact(Key(kJob, 2, 0), refused);
  second.Exit(Key(kJob, 2, 0), 1);

  v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_RECOVERING) << job.reason();
  EXPECT_THAT(job.reason(), HasSubstr("not used: w1 (unreachable), w2 (rank 0 on w2 cannot resume there: the "
                                      "checkpoint of step 40"));
  EXPECT_EQ(job.restarts(), 1u) << "only the restart because of the lost host";
  EXPECT_THAT(harness.Decisions(kJob), Contains(HasSubstr("waits for a host that has the checkpoint")));

  harness.Advance(absl::Seconds(62));
  EXPECT_EQ(harness.Get(kJob).generation(), 3u) << "the job is placed there again, because the folder may exist now";
  EXPECT_EQ(harness.Get(kJob).restarts(), 1u);
  EXPECT_EQ(harness.Get(kJob).planned_restarts(), 1u);
  second.Apply();
  second.ReportFact(Key(kJob, 3, 0), refused);
  second.Exit(Key(kJob, 3, 0), 1);
  harness.SetHostState("w1", v1::SetHostRequest::ACTION_UNCORDON);
  harness.Restart();
  second.Attach();
  harness.Advance(absl::Seconds(1));
  EXPECT_EQ(harness.Get(kJob).generation(), 3u) << "the next coordinator avoids the host, too";
  first.running.clear();
  first.Attach();
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w1");
  EXPECT_EQ(first.desired().trainers(0).restart_from().step(), 40u);
}

TEST(CoreHosts, FailedStartOnOneHost_IsRetriedElsewhere) {
  for (bool may_pass : {false, true}) {
    Harness harness;
    FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
    first.Attach();
    second.Attach();
    harness.Submit(MakeSpec(1), kJob);
    v1::Fact fact;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_START_FAILED);
    fact.mutable_exited()->set_message("cannot write /var/x: No space left on device");
    fact.mutable_exited()->set_may_pass(may_pass);
    first.ReportFact(Key(kJob, 1, 0), fact);

    v1::Job job = harness.Get(kJob);
    EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED) << job.reason();
    EXPECT_EQ(job.ranks(0).host(), "w2");
    EXPECT_EQ(job.restarts(), may_pass ? 0u : 1u) << "a host without space does not use up a restart";
    EXPECT_EQ(first.desired().jobs_size(), 0) << "the host no longer takes part in the job";

    second.ReportFact(Key(kJob, 2, 0), fact);
    harness.Advance(absl::Seconds(1));
    job = harness.Get(kJob);
    if (may_pass) {
      EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED) << "the policy retries on the same host: " << job.reason();
    } else {
      EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
      EXPECT_THAT(job.reason(), HasSubstr("no other host can run the job"));
    }
  }
}

TEST(CoreHosts, TrainerThatCannotRunOnItsHost_MovesTheJob_WithTheLastLineOfItsOutputAsTheReason) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  first.Attach();
  second.Attach();
  harness.Submit(MakeSpec(1), kJob);
  first.Apply();
  v1::Fact exited;
  exited.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
  exited.mutable_exited()->set_code(kExitCannotRun);
  exited.mutable_exited()->add_last_lines("no GPU can be used on this machine");
  first.running.clear();

  first.ReportFact(Key(kJob, 1, 0), exited);

  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w2");
  EXPECT_THAT(harness.Decisions(kJob), Contains(HasSubstr("rank 0 on w1 could not be run (exit code 127): no GPU can "
                                                          "be used on this machine; restarting from")));
}

TEST(CoreHosts, HostThatCannotStartAJob_IsAvoidedByTheNextCoordinatorToo_UntilItHasANewDaemon) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  first.Attach();
  second.Attach();
  harness.Submit(MakeSpec(1), kJob);
  first.Apply();
  first.Exit(Key(kJob, 1, 0), kExitCannotRun);
  ASSERT_EQ(harness.Get(kJob).ranks(0).host(), "w2");
  second.Apply();

  harness.Restart();
  first.Attach();
  second.Attach();
  harness.Advance(absl::Seconds(62));
  harness.SetHostState("w2", v1::SetHostRequest::ACTION_CORDON);
  second.Exit(Key(kJob, 2, 0), 7);
  harness.Advance(absl::Seconds(1));
  EXPECT_EQ(harness.Get(kJob).generation(), 2u);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("w1 (rank 0 on w1 could not be run"));

  first.Detach();
  FakeHost replaced(harness, "w1", 1, 12);
  replaced.Attach();
  harness.Advance(absl::Seconds(1));
  EXPECT_EQ(harness.Get(kJob).generation(), 3u) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w1");
}

TEST(CoreHosts, JobOnGpus_IsWarnedOfOtherJobsThatComputeOnThem) {
  constexpr char kOtherJob[] = "job0000other";
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.inventory.add_gpus();
  host.inventory.add_gpus();
  host.Attach();
  v1::JobSpec spec = MakeSpec(1);
  spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
  harness.Submit(spec, kJob);
  EXPECT_THAT(harness.Notices(kJob), Not(Contains(HasSubstr("may share GPUs"))));

  harness.Submit(spec, kOtherJob);

  EXPECT_THAT(harness.Notices(kOtherJob),
              Contains(HasSubstr(absl::StrCat(
                  "may share GPUs with other jobs, even if other GPUs are free, on w1 (job ", kJob, ")"))));
}

TEST(CoreHosts, Drain_MovesJobsAtAStepBoundary) {
  ServingHosts two;
  auto& [harness, first, second] = two;
  FakeHost spare(harness, "w3", 1, 33);
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  spare.Attach();

  Reply reply = harness.SetHostState("w2", v1::SetHostRequest::ACTION_DRAIN, "new disk");
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_TRUE(std::get<v1::HostStatus>(reply.response).cordoned());
  EXPECT_TRUE(second.desired().trainers(0).stop());
  first.Save(Key(kJob, 1, 0), 4);
  first.Finish(Key(kJob, 1, 0), 4, true);
  second.Finish(Key(kJob, 1, 1), 4, true);

  v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(job.ranks(0).host(), "w1") << "ranks stay on their hosts";
  EXPECT_EQ(job.ranks(1).host(), "w3");
  EXPECT_EQ(job.restarts(), 0u);
  EXPECT_THAT(harness.Decisions(kJob), Contains("operator: host w2 is drained: new disk"));
}

// Regression: the job ended as CANCELLED, and the steps since its last checkpoint were lost.
TEST(CoreHosts, DrainNow_DuringACancellationWithASave_MovesTheJob) {
  ServingHosts two;
  FakeHost spare(two.harness, "w3", 1, 33);
  spare.Attach();
  ASSERT_TRUE(two.harness.CancelSaved(kJob).status.ok());

  two.harness.SetHostState("w2", v1::SetHostRequest::ACTION_DRAIN, "", /*immediately=*/true);
  two.first.Apply();
  two.second.Apply();

  EXPECT_EQ(two.harness.StateOf(kJob), v1::JOB_STATE_PLACED) << two.harness.Get(kJob).reason();
  EXPECT_EQ(two.harness.Get(kJob).ranks(1).host(), "w3");
  EXPECT_THAT(two.harness.Decisions(kJob), Contains(HasSubstr("the job was not cancelled: host w2 is drained")));
}

TEST(CoreHosts, DrainedHost_HasNoJobsOnceItsRanksHaveEnded_EvenIfTheJobMustWait) {
  ServingHosts two;
  auto& [harness, first, second] = two;
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);

  harness.SetHostState("w2", v1::SetHostRequest::ACTION_DRAIN);
  EXPECT_THAT(harness.HostOf("w2").jobs(), ::testing::ElementsAre(kJob));
  first.Save(Key(kJob, 1, 0), 4);
  first.Finish(Key(kJob, 1, 0), 4, true);
  second.Finish(Key(kJob, 1, 1), 4, true);

  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_QUEUED) << "no other host has free slots";
  EXPECT_THAT(harness.HostOf("w2").jobs(), ::testing::IsEmpty())
      << "the preStop hook of a pod waits until its host has no jobs";
}

TEST(CoreHosts, CordonedHost_GetsNoNewJobs_AndIsNamedInTheReason_UntilItIsUncordoned) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.SetHostState("w1", v1::SetHostRequest::ACTION_CORDON, "disk");
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (cordoned: disk)"));
  harness.Restart();
  host.Attach();
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (cordoned: disk)")) << "the cordon is durable";

  harness.SetHostState("w1", v1::SetHostRequest::ACTION_UNCORDON);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

TEST(CoreHosts, LeavingDaemon_GetsNoNewJobs) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Handle(HostDraining{host.session, true});
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (its daemon is leaving)"));
  harness.Handle(HostDraining{host.session, false});
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

TEST(CoreHosts, HostInTrouble_GetsNoNewJobs_AndIsReportedOnce_WithTheReason) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  const std::string trouble = "its state folder /var/lib/trainyard is gone";
  for (int i = 0; i < 3; ++i) harness.Handle(HostTrouble{host.session, trouble});
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr(absl::StrCat("not used: w1 (", trouble, ")")));
  EXPECT_EQ(harness.HostOf("w1").trouble(), trouble);
  host.Detach();
  host.Attach();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_QUEUED) << "the host gets no job until a heartbeat reports no trouble";

  harness.Handle(HostTrouble{host.session, ""});
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  std::vector<std::string> notices = harness.ClusterNotices();
  EXPECT_EQ(std::count_if(notices.begin(), notices.end(),
                          [&](const std::string& text) { return text.find(trouble) != text.npos; }),
            1);
  EXPECT_THAT(notices, Contains("host w1 can run ranks again"));
}

TEST(CoreHosts, UnreachableHost_ShowsItsUsedSlots) {
  ServingHosts two;
  FakeHost idle(two.harness, "w3", 4, 33);
  idle.Attach();
  idle.Disconnect();
  two.second.Disconnect();
  two.harness.Advance(absl::Seconds(10));

  EXPECT_FALSE(two.harness.HostOf("w3").reachable());
  EXPECT_EQ(two.harness.HostOf("w3").slots_free(), 4u);
  EXPECT_EQ(two.harness.HostOf("w2").slots_free(), 0u);
}

TEST(CoreHosts, UnknownHost_IsAnsweredWithTheClosestName) {
  Harness harness;
  FakeHost host(harness, "worker-12", 2, 11);
  host.Attach();
  Reply reply = harness.SetHostState("worker-21", v1::SetHostRequest::ACTION_DRAIN);
  EXPECT_TRUE(absl::IsNotFound(reply.status));
  EXPECT_EQ(reply.status.message(), "no host worker-21; did you mean worker-12?");
  EXPECT_TRUE(
      absl::IsInvalidArgument(harness.SetHostState("worker-12", v1::SetHostRequest::ACTION_UNSPECIFIED).status));
}

TEST(CoreHosts, ChosenAndExcludedHosts_AreRespected) {
  Harness harness;
  FakeHost first(harness, "w1", 2, 11), second(harness, "w2", 2, 22);
  first.Attach();
  second.Attach();
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_resources()->add_hosts("w2");
  harness.Submit(spec, kJob);
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w2");
  spec = MakeSpec(2);
  spec.mutable_resources()->add_exclude_hosts("w1");
  harness.Submit(spec, "job0000two2");
  EXPECT_THAT(harness.Get("job0000two2").reason(), HasSubstr("busy: w2 (job job00000001)"));
  EXPECT_THAT(harness.Get("job0000two2").reason(), HasSubstr("not used: w1 (in resources.exclude_hosts)"));
}

TEST(CoreHosts, LargeJob_IsNotOvertakenForever) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(MakeSpec(1), "job0000one1");
  harness.Submit(MakeSpec(2), "job00000big");
  harness.Submit(MakeSpec(3), "job00000too");
  harness.Submit(MakeSpec(1), "job0000two2");
  EXPECT_EQ(harness.StateOf("job0000two2"), v1::JOB_STATE_PLACED) << "a job that fits overtakes";
  harness.Cancel("job0000two2");
  host.Apply();
  harness.Advance(absl::Minutes(10) + absl::Seconds(2));

  harness.Submit(MakeSpec(1), "job00three3");
  EXPECT_EQ(harness.StateOf("job00three3"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(harness.Get("job00three3").reason(), HasSubstr("reserved for job job00000big, which has waited for 10m"));
  harness.Cancel("job0000one1");
  host.Apply();
  EXPECT_EQ(harness.StateOf("job00000big"), v1::JOB_STATE_PLACED);
  harness.Cancel("job00000big");
  host.Apply();
  EXPECT_EQ(harness.StateOf("job00three3"), v1::JOB_STATE_PLACED) << "a job that can never fit delays no other job";
}

// Regression: a host that had been cut off counted as silent although its facts had just arrived.
TEST(CoreHosts, FactOfASilentHost_IsAContact_EvenIfItsStreamEndsBeforeTheNextTick) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  RunJobOn(host);
  std::erase(harness.alive, host.session);
  harness.Advance(absl::Seconds(8));
  ASSERT_GT(harness.HostOf("w1").last_heard_s(), 7);

  host.Save(Key(kJob, 1, 0), 4);
  host.Disconnect();
  harness.Advance(absl::Milliseconds(200));

  EXPECT_LT(harness.HostOf("w1").last_heard_s(), 1);
}

}  // namespace
}  // namespace trainyard
