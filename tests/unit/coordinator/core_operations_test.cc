// What operators ask of jobs and hosts, through the production core on a held clock.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/core_harness.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kJob[] = "job00000001";

struct OneHost {
  explicit OneHost(uint32_t ranks = 2) : host(harness, "w1", ranks, 11) {
    host.Attach();
    harness.Submit(MakeSpec(ranks), kJob);
  }
  v1::Job Get() { return harness.Get(kJob); }
  // What trainers do when asked to stop: all leave after the same step, rank 0 saves it.
  void StopAndSave(uint64_t generation, uint64_t step) {
    host.Report(Key(kJob, generation, 0), 1, step);
    host.Save(Key(kJob, generation, 0), step);
    for (uint32_t rank = 0; rank < host.slots; ++rank) host.Finish(Key(kJob, generation, rank), step, true);
  }

  Harness harness;
  FakeHost host;
};

TEST(CoreOperations, Pause_StopsAtAStep_FreesTheSlots_AndResumeGoesOnFromTheSave) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  ASSERT_TRUE(one.harness.Pause(kJob).status.ok());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_STOPPING);
  ASSERT_EQ(one.host.desired().trainers_size(), 2);
  EXPECT_TRUE(one.host.desired().trainers(0).stop());
  one.StopAndSave(1, 5);

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get().reason(), "paused: night");
  EXPECT_TRUE(one.harness.Pause(kJob).status.ok()) << "pausing a paused job is no error";
  one.harness.Submit(MakeSpec(2), "job0000two2");
  EXPECT_EQ(one.harness.StateOf("job0000two2"), v1::JOB_STATE_PLACED) << "its slots are free";
  one.harness.Cancel("job0000two2");
  one.host.Apply(false);

  ASSERT_TRUE(one.harness.Resume(kJob).status.ok());
  v1::Job job = one.Get();
  EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(job.generation(), 2u);
  EXPECT_EQ(job.restarts(), 0u) << "not counted against max_restarts";
  EXPECT_EQ(job.planned_restarts(), 1u);
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
  EXPECT_GT(job.goodput().total_s(), -1);
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("operator: paused: night"));
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("operator: resumed"));
}

// protobuf writes text that was cut inside a character, and then refuses to read it: the whole store with it.
TEST(CoreOperations, LongReasonInAnyScript_IsReadBackByTheNextCoordinator) {
  std::string reason = "x";
  for (int i = 0; i < 1'000; ++i) reason += "ж";
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  v1::SetHostRequest cordon;
  cordon.set_name("w1");
  cordon.set_action(v1::SetHostRequest::ACTION_CORDON);
  cordon.set_reason(reason);
  one.harness.Handle(SetHost{CallId(901), cordon});
  one.harness.Handle(CancelJob{CallId(902), JobId(kJob), reason});
  one.host.Vanish();

  one.harness.Restart();

  EXPECT_THAT(one.Get().reason(), HasSubstr("жжж"));
}

TEST(CoreOperations, PauseAndRestart_SurviveADeathOfTheCoordinator) {
  for (bool pause : {true, false}) {
    OneHost one;
    BringToRunning(one.harness, one.host, kJob);
    pause ? one.harness.Pause(kJob) : one.harness.RestartAsked(kJob);
    one.host.Vanish();
    one.harness.Restart();
    one.host.Attach();
    ASSERT_EQ(one.host.desired().trainers_size(), 2);
    EXPECT_TRUE(one.host.desired().trainers(0).stop()) << "asked for again";
    one.StopAndSave(1, 5);
    EXPECT_EQ(one.Get().state(), pause ? v1::JOB_STATE_PAUSED : v1::JOB_STATE_PLACED);
    if (!pause) continue;

    one.harness.Restart();
    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
    one.host.Attach();
    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
    one.harness.Resume(kJob);
    EXPECT_EQ(one.Get().generation(), 2u);
  }
}

TEST(CoreOperations, Pause_WhileQueuedOrForming_IsAtOnce) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);
  harness.Pause(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED) << "a paused job takes no slots";
  harness.Resume(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  host.Apply();
  harness.Pause(kJob);
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(harness.Get(kJob).planned_restarts(), 0u);
}

TEST(CoreOperations, PauseWhoseSaveFails_IsNotCarriedOut) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 3);
  one.host.Save(Key(kJob, 1, 0), 3);
  one.harness.Pause(kJob);
  one.host.SaveFails(Key(kJob, 1, 0), 5);
  one.host.Finish(Key(kJob, 1, 0), 5, true);
  one.host.Finish(Key(kJob, 1, 1), 5, true);

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 3u);
  EXPECT_THAT(one.harness.Decisions(kJob), Contains(HasSubstr("was not paused: its save failed")));
}

TEST(CoreOperations, ResumeWithoutACheckpoint_IsRefused_UnlessFromTheStart) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  one.harness.Pause(kJob, /*at_once=*/true);
  one.host.Apply();
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);

  Reply reply = one.harness.Resume(kJob);
  EXPECT_TRUE(absl::IsFailedPrecondition(reply.status));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("has made 5 steps and no checkpoint holds them"));
  EXPECT_TRUE(one.harness.Resume(kJob, /*from_start=*/true).status.ok());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
}

TEST(CoreOperations, Restart_IsNotCountedAgainstMaxRestarts) {
  OneHost one;
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    BringToRunning(one.harness, one.host, kJob);
    ASSERT_TRUE(one.harness.RestartAsked(kJob).status.ok());
    EXPECT_TRUE(one.harness.RestartAsked(kJob).status.ok()) << "asking twice is asking once";
    one.StopAndSave(generation, generation * 2);
    EXPECT_EQ(one.Get().generation(), generation + 1);
  }
  EXPECT_EQ(one.Get().restarts(), 0u);
  EXPECT_EQ(one.Get().planned_restarts(), 3u);
}

TEST(CoreOperations, RanksThatDoNotStopForARestart_AreKilledAfterTheGrace_ButASaveIsWaitedFor) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.harness.RestartAsked(kJob);
  for (int i = 0; i < 40; ++i) {
    one.host.Stand(Key(kJob, 1, 0), "save", 5, "");
    one.harness.Advance(absl::Milliseconds(500));
  }
  EXPECT_EQ(one.host.desired().trainers_size(), 2) << "20 s of saving";
  one.harness.Advance(absl::Seconds(5));
  EXPECT_EQ(one.host.desired().trainers_size(), 0) << "silent now, and its grace is over";
  one.host.Apply();
  EXPECT_EQ(one.Get().generation(), 2u);
}

TEST(CoreOperations, WhatMakesNoSense_IsRefusedWithTheState) {
  OneHost one;
  EXPECT_TRUE(absl::IsNotFound(one.harness.RestartAsked("job0000none").status));
  EXPECT_TRUE(absl::IsNotFound(one.harness.Pause("job0000none").status));
  EXPECT_TRUE(absl::IsNotFound(one.harness.Resume("job0000none").status));
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.Resume(kJob).status));
  one.harness.Cancel(kJob);
  one.host.Apply();
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);
  for (const Reply& reply : {one.harness.RestartAsked(kJob), one.harness.Pause(kJob), one.harness.Resume(kJob)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(reply.status));
    EXPECT_THAT(std::string(reply.status.message()), HasSubstr("CANCELLED"));
  }
  one.harness.Submit(MakeSpec(9), "job0000wait");
  EXPECT_THAT(std::string(one.harness.RestartAsked("job0000wait").status.message()), HasSubstr("is QUEUED (waits for"));
}

TEST(CoreOperations, CancelOverridesAPause) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.harness.Pause(kJob);
  one.harness.Cancel(kJob);
  one.StopAndSave(1, 5);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);

  one.harness.Submit(MakeSpec(9), "job0000wait");
  one.harness.Pause("job0000wait");
  one.harness.Cancel("job0000wait");
  EXPECT_EQ(one.harness.StateOf("job0000wait"), v1::JOB_STATE_CANCELLED) << "a paused job may be cancelled";
}

TEST(CoreOperations, FailureOnTheWayToAPause_LeavesItPaused_AndIsTold) {
  OneHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 3);
  one.harness.Pause(kJob);
  one.host.Kill(Key(kJob, 1, 1), 9);
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get().restarts(), 0u);
  bool told = false;
  for (const EventPtr& event : one.harness.WatchFrom(kJob, 0)) {
    told |= event->notice().text().find("rank 1 on w1 was killed by signal 9") != std::string::npos;
  }
  EXPECT_TRUE(told);
}

TEST(CoreOperations, Drain_MovesTheJobsElsewhere_AtAStep) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22), spare(harness, "w3", 1, 33);
  first.Attach();
  second.Attach();
  harness.Submit(MakeSpec(2), kJob);
  first.Apply();
  second.Apply();
  for (FakeHost* host : {&first, &second}) {
    host->Register(Key(kJob, 1, host == &second));
    host->Ready(Key(kJob, 1, host == &second));
  }
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  spare.Attach();

  Reply reply = harness.Set("w2", v1::SetHostRequest::ACTION_DRAIN, "new disk");
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_TRUE(std::get<v1::HostStatus>(reply.response).cordoned());
  EXPECT_TRUE(second.desired().trainers(0).stop());
  first.Save(Key(kJob, 1, 0), 4);
  first.Finish(Key(kJob, 1, 0), 4, true);
  second.Finish(Key(kJob, 1, 1), 4, true);

  v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(job.ranks(0).host(), "w1") << "ranks stay with their hosts";
  EXPECT_EQ(job.ranks(1).host(), "w3");
  EXPECT_EQ(job.restarts(), 0u);
  EXPECT_THAT(harness.Decisions(kJob), Contains("operator: host w2 is drained: new disk"));
}

TEST(CoreOperations, CordonedHost_GetsNothingNew_AndIsNamed_UntilItIsUncordoned) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Set("w1", v1::SetHostRequest::ACTION_CORDON, "disk");
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (cordoned: disk)"));
  harness.Restart();
  host.Attach();
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (cordoned: disk)")) << "durable";

  harness.Set("w1", v1::SetHostRequest::ACTION_UNCORDON);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

TEST(CoreOperations, DaemonThatIsLeaving_GetsNothingNew) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Handle(HostDraining{host.session, true});
  harness.Submit(MakeSpec(2), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("not used: w1 (its daemon is leaving)"));
  harness.Handle(HostDraining{host.session, false});
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

TEST(CoreOperations, UnknownHost_IsAnsweredWithTheNearest) {
  Harness harness;
  FakeHost host(harness, "worker-12", 2, 11);
  host.Attach();
  Reply reply = harness.Set("worker-21", v1::SetHostRequest::ACTION_DRAIN);
  EXPECT_TRUE(absl::IsNotFound(reply.status));
  EXPECT_EQ(reply.status.message(), "no host worker-21; did you mean worker-12?");
  EXPECT_TRUE(absl::IsInvalidArgument(harness.Set("worker-12", v1::SetHostRequest::ACTION_UNSPECIFIED).status));
}

TEST(CoreOperations, ChosenAndExcludedHosts_AreKept) {
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

TEST(CoreOperations, BigJob_IsNotOvertakenForEver) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(MakeSpec(1), "job0000one1");
  harness.Submit(MakeSpec(2), "job00000big");
  harness.Submit(MakeSpec(3), "job00000too");
  harness.Submit(MakeSpec(1), "job0000two2");
  EXPECT_EQ(harness.StateOf("job0000two2"), v1::JOB_STATE_PLACED) << "what fits goes ahead";
  harness.Cancel("job0000two2");
  host.Apply();
  harness.Advance(absl::Minutes(10) + absl::Seconds(2));

  harness.Submit(MakeSpec(1), "job00three3");
  EXPECT_EQ(harness.StateOf("job00three3"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(harness.Get("job00three3").reason(), HasSubstr("kept for job job00000big, which has waited for 10m"));
  harness.Cancel("job0000one1");
  host.Apply();
  EXPECT_EQ(harness.StateOf("job00000big"), v1::JOB_STATE_PLACED);
  harness.Cancel("job00000big");
  host.Apply();
  EXPECT_EQ(harness.StateOf("job00three3"), v1::JOB_STATE_PLACED) << "one that can never fit keeps nobody waiting";
}

TEST(CoreOperations, Goodput_OfARestartedJob_AddsUp) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);
  harness.Advance(absl::Seconds(2));
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Advance(absl::Seconds(1));
  BringToRunning(harness, host, kJob);
  harness.Advance(absl::Seconds(4));
  host.Report(Key(kJob, 1, 0), 1, 4);
  host.Save(Key(kJob, 1, 0), 4);
  harness.Advance(absl::Seconds(3));
  host.Report(Key(kJob, 1, 0), 5, 5);
  harness.Advance(absl::Seconds(1));
  host.Kill(Key(kJob, 1, 1), 9);
  harness.Advance(absl::Seconds(2));
  host.Apply(false);

  v1::Goodput goodput = harness.Get(kJob).goodput();
  EXPECT_DOUBLE_EQ(goodput.queue_s(), 4);
  EXPECT_DOUBLE_EQ(goodput.start_s(), 2);
  EXPECT_DOUBLE_EQ(goodput.train_s(), 8);
  EXPECT_DOUBLE_EQ(goodput.lost_s(), 6) << "step 5, which no checkpoint holds";
  EXPECT_DOUBLE_EQ(goodput.detect_s(), 2);
  EXPECT_DOUBLE_EQ(goodput.recover_s(), 4);
  EXPECT_DOUBLE_EQ(goodput.total_s(), 26);
}

}  // namespace
}  // namespace trainyard
