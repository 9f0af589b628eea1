// Operators' requests about jobs, with the production core on a manual clock.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct OperatedHost {
  explicit OperatedHost(uint32_t ranks = 2) : host(harness, "w1", ranks, 11) {
    host.Attach();
    harness.Submit(MakeSpec(ranks), kJob);
  }
  v1::Job Get() { return harness.Get(kJob); }
  // The trainers' answer to a stop request: all leave after the same step, which rank 0 saves.
  void StopAndSave(uint64_t generation, uint64_t step) {
    host.Report(Key(kJob, generation, 0), 1, step);
    host.Save(Key(kJob, generation, 0), step);
    for (uint32_t rank = 0; rank < host.slots; ++rank) host.Finish(Key(kJob, generation, rank), step, true);
  }

  Harness harness;
  FakeHost host;
};

TEST(CoreOperations, Pause_StopsAtAStep_FreesTheSlots_AndResumeContinuesFromTheSave) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  ASSERT_TRUE(one.harness.Pause(kJob).status.ok());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_STOPPING);
  ASSERT_EQ(one.host.desired().trainers_size(), 2);
  EXPECT_TRUE(one.host.desired().trainers(0).stop());
  one.StopAndSave(1, 5);

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get().reason(), "paused: night");
  EXPECT_EQ(one.host.desired().jobs_size(), 0) << "other jobs may need the memory of its snapshots";
  EXPECT_TRUE(one.harness.Pause(kJob).status.ok()) << "pausing a paused job is no error";
  one.harness.Submit(MakeSpec(2), "job0000two2");
  EXPECT_EQ(one.harness.StateOf("job0000two2"), v1::JOB_STATE_PLACED) << "its slots are free";
  one.harness.Cancel("job0000two2");
  one.host.Apply(/*start=*/false);

  ASSERT_TRUE(one.harness.Resume(kJob).status.ok());
  v1::Job job = one.Get();
  EXPECT_EQ(job.state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(job.generation(), 2u);
  EXPECT_EQ(job.restarts(), 0u) << "not counted against max_restarts";
  EXPECT_EQ(job.planned_restarts(), 1u);
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("operator: paused: night"));
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("operator: resumed"));
}

// Regression: protobuf writes text that was cut inside a character, but refuses to read it, so the whole store could
// not be read.
TEST(CoreOperations, LongReasonOfCharactersOfSeveralBytes_IsReadByTheNextCoordinator) {
  std::string reason = "x";
  for (int i = 0; i < 1'000; ++i) reason += "ж";
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  v1::SetHostRequest cordon;
  cordon.set_name("w1");
  cordon.set_action(v1::SetHostRequest::ACTION_CORDON);
  cordon.set_reason(reason);
  one.harness.Handle(SetHost{CallId(901), cordon});
  one.harness.Handle(CancelJob{CallId(902), JobId(kJob), reason});
  one.host.Disconnect();

  one.harness.Restart();

  EXPECT_THAT(one.Get().reason(), HasSubstr("жжж"));
}

TEST(CoreOperations, PauseAndRestart_SurviveACoordinatorRestart) {
  for (bool pause : {true, false}) {
    OperatedHost one;
    BringToRunning(one.harness, one.host, kJob);
    pause ? one.harness.Pause(kJob) : one.harness.RequestRestart(kJob);
    one.host.Disconnect();
    one.harness.Restart();
    one.host.Attach();
    ASSERT_EQ(one.host.desired().trainers_size(), 2);
    EXPECT_TRUE(one.host.desired().trainers(0).stop()) << "the stop is requested again";
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

TEST(CoreOperations, Pause_WhileQueuedOrForming_IsImmediate) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);
  harness.Pause(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED) << "a paused job uses no slots";
  harness.Resume(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  host.Apply();
  harness.Pause(kJob);
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(harness.Get(kJob).planned_restarts(), 0u);
}

TEST(CoreOperations, CancelWithASave_IsNotCarriedOut_IfTheRanksDoNotStopInTime) {
  for (bool cut_off : {false, true}) {
    OperatedHost one;
    BringToRunning(one.harness, one.host, kJob);
    if (cut_off) one.host.Disconnect();
    ASSERT_TRUE(one.harness.CancelSaved(kJob).status.ok());
    one.harness.Advance(absl::Seconds(12));

    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
    EXPECT_THAT(one.harness.Decisions(kJob),
                Contains(HasSubstr("the job was not cancelled: the ranks did not stop in time; it continues")));
    if (cut_off) continue;
    ASSERT_EQ(one.host.desired().trainers_size(), 2);
    EXPECT_FALSE(one.host.desired().trainers(0).stop());

    // The ranks cannot forget the request: they carry it out after their next step, which is no failure.
    one.StopAndSave(1, 5);
    EXPECT_EQ(one.Get().generation(), 2u) << one.Get().reason();
    EXPECT_EQ(one.Get().restarts(), 0u);
    ASSERT_EQ(one.host.desired().trainers_size(), 2);
    EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
  }
}

TEST(CoreOperations, UndoneStopThatTheRanksCarryOutAfterAll_IsNoFailureForTheNextCoordinator) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  ASSERT_TRUE(one.harness.CancelSaved(kJob).status.ok());
  one.harness.Advance(absl::Seconds(12));
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING) << one.Get().reason();
  one.host.Disconnect();
  one.harness.Restart();
  one.host.Attach();

  one.StopAndSave(1, 5);

  EXPECT_EQ(one.Get().generation(), 2u) << one.Get().reason();
  EXPECT_EQ(one.Get().restarts(), 0u);
}

TEST(CoreOperations, PlainCancelAfterACancelWithASave_EndsTheJob_EvenIfTheRanksDoNotStop) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.harness.CancelSaved(kJob);
  one.harness.Cancel(kJob);
  one.harness.Advance(absl::Seconds(12));
  EXPECT_EQ(one.host.desired().trainers_size(), 0);
  one.host.Apply();
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);
}

TEST(CoreOperations, PauseOrRestartWithAFailedSave_IsNotCarriedOut_AndTheSameGenerationContinues) {
  for (bool pause : {true, false}) {
    OperatedHost one;
    BringToRunning(one.harness, one.host, kJob);
    pause ? one.harness.Pause(kJob) : one.harness.RequestRestart(kJob);
    ASSERT_TRUE(one.host.desired().trainers(0).stop_needs_save());
    EXPECT_EQ(one.host.desired().trainers(0).stop_request(), 1u);
    one.host.SaveFails(Key(kJob, 1, 0), 5, /*stop_request=*/1);

    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
    EXPECT_EQ(one.Get().generation(), 1u);
    ASSERT_EQ(one.host.desired().trainers_size(), 2);
    EXPECT_FALSE(one.host.desired().trainers(0).stop());
    EXPECT_THAT(one.harness.Decisions(kJob),
                Contains(HasSubstr(absl::StrCat("the job was not ", pause ? "paused" : "restarted",
                                                ": step 5 could not be saved: No space left on device; training "
                                                "continues"))));
    one.harness.Advance(absl::Minutes(1));
    one.harness.Restart();
    one.host.Attach();
    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING) << "the request is cancelled for the next coordinator, too";
    EXPECT_EQ(one.host.desired().trainers_size(), 2) << "the grace of the cancelled stop does not end them";

    one.harness.Pause(kJob);
    EXPECT_GT(one.host.desired().trainers(0).stop_request(), 1u) << "the ranks have already acted on request 1";
    one.host.SaveFails(Key(kJob, 1, 0), 6, /*stop_request=*/1);
    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_STOPPING) << "a repeated report about the previous stop";
    one.StopAndSave(1, 9);
    EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
  }
}

TEST(CoreOperations, FailedSave_UndoesNeitherACancel_NorAnImmediatePause_NorAnUnrelatedRequest) {
  OperatedHost regular;
  BringToRunning(regular.harness, regular.host, kJob);
  regular.harness.Pause(kJob);
  regular.host.SaveFails(Key(kJob, 1, 0), 5);
  EXPECT_EQ(regular.Get().state(), v1::JOB_STATE_STOPPING) << "the failed save was not made for the pause";

  OperatedHost cancelled;
  BringToRunning(cancelled.harness, cancelled.host, kJob);
  cancelled.harness.Pause(kJob);
  cancelled.harness.Cancel(kJob);
  EXPECT_EQ(cancelled.host.desired().trainers(0).stop_request(), 2u);
  EXPECT_FALSE(cancelled.host.desired().trainers(0).stop_needs_save());
  cancelled.host.SaveFails(Key(kJob, 1, 0), 5, /*stop_request=*/1);
  EXPECT_EQ(cancelled.Get().state(), v1::JOB_STATE_STOPPING);
  cancelled.host.Finish(Key(kJob, 1, 0), 6, true);
  cancelled.host.Finish(Key(kJob, 1, 1), 6, true);
  EXPECT_EQ(cancelled.Get().state(), v1::JOB_STATE_CANCELLED);

  OperatedHost immediate;
  BringToRunning(immediate.harness, immediate.host, kJob);
  immediate.harness.Pause(kJob);
  immediate.harness.Pause(kJob, /*immediately=*/true);
  immediate.host.SaveFails(Key(kJob, 1, 0), 5, /*stop_request=*/1);
  immediate.host.Apply();
  EXPECT_EQ(immediate.Get().state(), v1::JOB_STATE_PAUSED) << "without a save, as requested";
}

TEST(CoreOperations, Events_ComeInPages_OfAFewMegabytes) {
  OperatedHost one;
  for (int i = 0; i < 4'000; ++i) {
    one.harness.SetHostState("w1", v1::SetHostRequest::ACTION_CORDON, std::string(1'000, 'x'));
  }
  v1::ListEventsRequest request;
  request.set_limit(10'000);
  uint64_t before = 0;
  int pages = 0;
  int events = 0;
  do {
    one.harness.Handle(ListEvents{CallId(900), request});
    Reply reply = one.harness.replies[CallId(900)];
    ASSERT_TRUE(reply.status.ok()) << reply.status;
    const auto& page = std::get<v1::ListEventsResponse>(reply.response);
    EXPECT_LE(page.ByteSizeLong(), limits::kEventsPageBytes + 100);
    for (const v1::Event& event : page.events()) {
      EXPECT_GT(event.sequence(), before);
      before = event.sequence();
    }
    events += page.events_size();
    ++pages;
    request.set_page_token(page.next_page_token());
    // Events that are published between two pages are in no page.
    one.harness.SetHostState("w1", v1::SetHostRequest::ACTION_UNCORDON);
  } while (!request.page_token().empty());

  EXPECT_GT(pages, 1);
  EXPECT_EQ(events, static_cast<int>(one.harness.core->state().cluster.durable().size()) - pages);
  request.set_page_token("nonsense");
  one.harness.Handle(ListEvents{CallId(901), request});
  EXPECT_TRUE(absl::IsInvalidArgument(one.harness.replies[CallId(901)].status));
}

TEST(CoreOperations, DroppedReports_AreReportedOncePerInterval) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  for (int i = 0; i < 500; ++i) {
    RankReportsReceived received{one.host.session, {}};
    v1::RankReport& report = *received.reports.add_reports();
    *report.mutable_key() = Key(kJob, 1, 0);
    report.set_dropped_steps(3);
    one.harness.Handle(std::move(received));
  }
  one.harness.Advance(absl::Minutes(3));

  std::vector<std::string> texts;
  for (const EventPtr& event : one.harness.WatchFrom(kJob, 0)) {
    if (event->notice().text().find("dropped") != std::string::npos) texts.push_back(event->notice().text());
  }
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_THAT(texts[0], StartsWith("3 step reports were dropped by the daemon on w1"));
  EXPECT_THAT(texts[1], StartsWith("1497 more step reports were dropped in the 1m"));
}

TEST(CoreOperations, ResumeWithoutACheckpoint_IsRefused_UnlessFromTheStart) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  one.harness.Pause(kJob, /*immediately=*/true);
  one.host.Apply();
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);

  Reply reply = one.harness.Resume(kJob);
  EXPECT_TRUE(absl::IsFailedPrecondition(reply.status));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("has made 5 steps and no checkpoint holds them"));
  EXPECT_TRUE(one.harness.Resume(kJob, /*from_start=*/true).status.ok());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
}

// Regression: Resume that a client repeated, because it got no answer, was refused: the job was not paused any more.
TEST(CoreOperations, RepeatedResume_IsNoError_UntilTheJobIsPausedAgainOrEnds) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.Resume(kJob).status)) << "the job was never paused";
  one.harness.Pause(kJob);
  ASSERT_TRUE(one.harness.Resume(kJob).status.ok());

  EXPECT_TRUE(one.harness.Resume(kJob).status.ok()) << "the group is still being ended";
  one.StopAndSave(1, 5);
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_PLACED);
  one.host.Disconnect();
  one.harness.Restart();
  one.host.Attach();
  const uint64_t version = one.Get().resource_version();
  EXPECT_TRUE(one.harness.Resume(kJob).status.ok());
  EXPECT_EQ(one.Get().resource_version(), version) << "the repetition changes nothing";

  one.harness.Cancel(kJob);
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.Resume(kJob).status));
}

// The trainers of a second job refuse to start in the folder of the paused job, which is not affected.
TEST(CoreOperations, PausedJob_ResumesAfterAnotherJobInItsFolderWasRefused) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  ASSERT_TRUE(one.harness.Pause(kJob).status.ok());
  one.StopAndSave(1, 5);
  one.harness.Submit(MakeSpec(2), "job0000two2", /*resume=*/true);
  one.host.Apply();
  v1::Fact refused;
  refused.mutable_refused()->set_message("checkpoint.dir is of job00000001");
  one.host.ReportFact(Key("job0000two2", 1, 0), refused);
  one.host.Apply();
  ASSERT_EQ(one.harness.StateOf("job0000two2"), v1::JOB_STATE_FAILED);

  ASSERT_TRUE(one.harness.Resume(kJob).status.ok());
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED) << one.Get().reason();
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
}

TEST(CoreOperations, Restart_IsNotCountedAgainstMaxRestarts) {
  OperatedHost one;
  for (uint64_t generation = 1; generation <= 3; ++generation) {
    BringToRunning(one.harness, one.host, kJob);
    ASSERT_TRUE(one.harness.RequestRestart(kJob).status.ok());
    EXPECT_TRUE(one.harness.RequestRestart(kJob).status.ok()) << "a repeated request has no effect";
    one.StopAndSave(generation, generation * 2);
    EXPECT_EQ(one.Get().generation(), generation + 1);
  }
  EXPECT_EQ(one.Get().restarts(), 0u);
  EXPECT_EQ(one.Get().planned_restarts(), 3u);
}

TEST(CoreOperations, RanksThatDoNotStopForARestart_AreKilledAfterTheGrace_ButNotDuringASave) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.harness.RequestRestart(kJob);
  for (int i = 0; i < 40; ++i) {
    one.host.ReportPosition(Key(kJob, 1, 0), "save", 5, "");
    one.harness.Advance(absl::Milliseconds(500));
  }
  EXPECT_EQ(one.host.desired().trainers_size(), 2) << "the ranks have been saving for 20 s";
  one.harness.Advance(absl::Seconds(5));
  EXPECT_EQ(one.host.desired().trainers_size(), 0) << "without further reports the grace expires";
  one.host.Apply();
  EXPECT_EQ(one.Get().generation(), 2u);
}

TEST(CoreOperations, InvalidRequests_AreRefusedWithTheState) {
  OperatedHost one;
  EXPECT_TRUE(absl::IsNotFound(one.harness.RequestRestart("job0000none").status));
  EXPECT_TRUE(absl::IsNotFound(one.harness.Pause("job0000none").status));
  EXPECT_TRUE(absl::IsNotFound(one.harness.Resume("job0000none").status));
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.Resume(kJob).status));
  one.harness.Cancel(kJob);
  one.host.Apply();
  ASSERT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);
  for (const Reply& reply : {one.harness.RequestRestart(kJob), one.harness.Pause(kJob), one.harness.Resume(kJob)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(reply.status));
    EXPECT_THAT(std::string(reply.status.message()), HasSubstr("CANCELLED"));
  }
  one.harness.Submit(MakeSpec(9), "job0000wait");
  EXPECT_THAT(std::string(one.harness.RequestRestart("job0000wait").status.message()),
              HasSubstr("is QUEUED (waits for"));
}

TEST(CoreOperations, CancelOfAPausingOrPausedJob_EndsItCancelled) {
  OperatedHost one;
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

TEST(CoreOperations, FailureDuringAPause_LeavesTheJobPaused_AndIsReported) {
  OperatedHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 3);
  one.harness.Pause(kJob);
  one.host.Kill(Key(kJob, 1, 1), 9);
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get().restarts(), 0u);
  bool noticed = false;
  for (const EventPtr& event : one.harness.WatchFrom(kJob, 0)) {
    noticed |= event->notice().text().find("rank 1 on w1 was killed by signal 9") != std::string::npos;
  }
  EXPECT_TRUE(noticed);
}

}  // namespace
}  // namespace trainyard
