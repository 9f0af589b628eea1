// A job from submit to its end, with the production core on a manual clock.
#include <gmock/gmock.h>

#include "common/limits.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of one rank that runs on one host.
struct RunningJob {
  RunningJob() { RunJobOn(host); }

  Harness harness;
  FakeHost host{harness, "w1", 1, 11};
};

TEST(CoreLifecycle, SubmittedJob_IsPlacedFormedRunAndFinished) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();

  Reply reply = harness.Submit(MakeSpec(2), kJob);
  ASSERT_TRUE(reply.status.ok()) << reply.status;
  EXPECT_EQ(std::get<v1::SubmitResponse>(reply.response).job_id(), kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  ASSERT_EQ(host.desired().trainers_size(), 2);
  EXPECT_FALSE(host.desired().trainers(0).go());
  EXPECT_EQ(host.desired().trainers(0).threads(), 2u) << "4 cores for 2 ranks";
  EXPECT_EQ(host.desired().trainers(1).local_rank(), 1u);
  EXPECT_FALSE(host.desired().trainers(0).resume());

  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_STARTING);
  host.Register(Key(kJob, 1, 0));
  host.Register(Key(kJob, 1, 1));
  host.Ready(Key(kJob, 1, 0));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_STARTING) << "rank 1 is not ready";
  host.Ready(Key(kJob, 1, 1));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(host.desired().trainers(0).go());

  host.Report(Key(kJob, 1, 0), 1, 10);
  host.Save(Key(kJob, 1, 0), 10);
  host.Finish(Key(kJob, 1, 0), 10);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  host.Finish(Key(kJob, 1, 1), 10);

  v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.last_step(), 10u);
  EXPECT_DOUBLE_EQ(job.last_loss(), 0.5);
  EXPECT_EQ(job.checkpoints_size(), 1);
  EXPECT_EQ(job.ranks(1).exit(), "exit code 0");
  EXPECT_EQ(harness.CountSteps(kJob), 10u);
  std::vector<EventPtr> events = harness.WatchFrom(kJob, 0);
  EXPECT_EQ(events.back()->state().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(host.desired().trainers_size(), 0);
}

TEST(CoreLifecycle, JobThatDoesNotFit_WaitsWithAReason_ThenIsPlaced) {
  Harness harness;
  harness.Submit(MakeSpec(4), kJob);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("no host is attached"));
  FakeHost first(harness, "w1", 2, 11);
  first.Attach();

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(harness.Get(kJob).reason(), "waits for slots: 4 ranks requested, 2 of 2 slots free on 1 host (w1)");

  FakeHost second(harness, "w2", 2, 22);
  second.Attach();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
  EXPECT_EQ(first.desired().trainers_size(), 2);
  EXPECT_EQ(second.desired().trainers(0).key().rank(), 2u);
  EXPECT_EQ(second.desired().trainers(0).local_rank(), 0u);
}

TEST(CoreLifecycle, LaterJobThatFits_OvertakesOneThatDoesNot) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(MakeSpec(4), "job00000big");
  harness.Submit(MakeSpec(2), kJob);

  EXPECT_EQ(harness.StateOf("job00000big"), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED);
}

TEST(CoreLifecycle, RepeatedSubmit_GetsTheSameAnswer_AndADifferentSpecWithTheSameIdIsRefused) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);

  EXPECT_TRUE(harness.Submit(MakeSpec(2), kJob).status.ok());
  EXPECT_EQ(harness.core->state().jobs.size(), 1u);
  EXPECT_TRUE(absl::IsAlreadyExists(harness.Submit(MakeSpec(3), kJob).status));
}

TEST(CoreLifecycle, BadSpec_IsRefusedWithEveryProblem) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_train()->mutable_model()->set_heads(3);
  spec.mutable_train()->mutable_batch()->set_micro(3);

  Reply reply = harness.Submit(spec, kJob);

  EXPECT_TRUE(absl::IsInvalidArgument(reply.status));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("heads"));
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("micro"));
  EXPECT_TRUE(absl::IsInvalidArgument(harness.Submit(MakeSpec(1), "NO").status));
}

TEST(CoreLifecycle, Cancel_WhileQueued_EndsImmediately) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);

  Reply reply = harness.Cancel(kJob);

  EXPECT_EQ(std::get<v1::Job>(reply.response).state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(harness.Get(kJob).reason(), "cancelled: enough");
  EXPECT_TRUE(harness.Cancel(kJob).status.ok()) << "cancelling a finished job is no error";
  EXPECT_TRUE(absl::IsNotFound(harness.Cancel("job00000two").status));
}

TEST(CoreLifecycle, Cancel_WhilePlaced_WithNothingStarted_EndsWhenTheHostHasAppliedTheDesiredState) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(MakeSpec(2), kJob);

  harness.Cancel(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_STOPPING);
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_CANCELLED);
}

TEST(CoreLifecycle, Cancel_WhileStarting_EndsTheTrainersImmediately) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(MakeSpec(2), kJob);
  host.Apply();

  harness.Cancel(kJob);
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_CANCELLED);
}

TEST(CoreLifecycle, Cancel_WhileRunning_StopsAtAStep) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  host.Report(Key(kJob, 1, 0), 1, 4);

  harness.Cancel(kJob);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_STOPPING);
  ASSERT_EQ(host.desired().trainers_size(), 2);
  EXPECT_TRUE(host.desired().trainers(0).stop());
  host.Finish(Key(kJob, 1, 0), 4, /*stopped=*/true);
  host.Finish(Key(kJob, 1, 1), 4, /*stopped=*/true);

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_CANCELLED);
}

TEST(CoreLifecycle, Cancel_OfRanksThatDoNotStop_KillsThemAfterTheGrace) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  harness.Cancel(kJob);

  harness.Advance(limits::kStopGrace - absl::Seconds(1));
  EXPECT_EQ(host.desired().trainers_size(), 2);
  harness.Advance(absl::Seconds(2));
  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_CANCELLED);
}

TEST(CoreLifecycle, CancelAfterTheLastStep_LeavesTheJobSucceeded) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 10);
  harness.Cancel(kJob);

  host.Finish(Key(kJob, 1, 0), 10);

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoreLifecycle, JobThatEndsEarly_SucceedsWithTheReason) {
  const std::string why = "stopped after step 6 of 10: the evaluation loss has not fallen for 3 evaluations";
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  host.Report(Key(kJob, 1, 0), 1, 6);
  host.Save(Key(kJob, 1, 0), 6);

  host.EndEarly(Key(kJob, 1, 0), 6, why);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING) << "rank 1 has not finished";
  host.EndEarly(Key(kJob, 1, 1), 6, why);

  const v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.reason(), why);
  EXPECT_EQ(job.last_step(), 6u);
  EXPECT_EQ(job.restarts(), 0u);
  EXPECT_EQ(harness.WatchFrom(kJob, 0).back()->state().reason(), why);
}

TEST(CoreLifecycle, JobThatEndsEarlyWithoutASave_StartsAgain) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 6);
  host.Save(Key(kJob, 1, 0), 4);

  host.EndEarly(Key(kJob, 1, 0), 6, "stopped after step 6 of 10");

  EXPECT_NE(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(harness.Get(kJob).generation(), 2u);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("from step 4"));
}

TEST(CoreLifecycle, RankThatStopsEarlyWithoutAReason_IsAFailure) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 6);

  host.Finish(Key(kJob, 1, 0), 6);

  EXPECT_NE(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
}

TEST(CoreLifecycle, SlowLastReports_AreWaitedForBeforeTheEnd) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 8);
  host.Finish(Key(kJob, 1, 0), 10);
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);

  host.Report(Key(kJob, 1, 0), 9, 10);

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(harness.CountSteps(kJob), 10u);
}

TEST(CoreLifecycle, Watch_ResumesAfterASequenceNumber_AndRefusesUnknownOnes) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 6);
  std::vector<EventPtr> all = harness.WatchFrom(kJob, 0);
  ASSERT_GT(all.size(), 6u);

  std::vector<EventPtr> rest = harness.WatchFrom(kJob, all[all.size() - 3]->sequence());
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest.back()->step().step(), 6u);
  harness.Handle(WatchJob{WatchId(1), JobId(kJob), {.sequence = all.back()->sequence() + 1}, true});
  EXPECT_TRUE(absl::IsOutOfRange(harness.ended_watches.at(WatchId(1))));

  // A watcher that has seen everything waits for the next event.
  harness.Handle(WatchJob{WatchId(2), JobId(kJob), {.sequence = all.back()->sequence()}, true});
  EXPECT_FALSE(harness.watched.contains(WatchId(2)));
  host.Report(Key(kJob, 1, 0), 7, 8);
  ASSERT_TRUE(harness.watched.contains(WatchId(2)));
  EXPECT_EQ(harness.watched[WatchId(2)].events.size(), 2u);
}

TEST(CoreLifecycle, Find_IsById_ThenByPrefix_ThenByName_NewestFirst) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(1);
  for (const char* id : {"abcd0001", "abcd0002", "abcd00021", "zzzz0003"}) {
    spec.set_name(id[0] == 'z' ? "abcd" : "lm");
    harness.Submit(spec, id);
  }

  EXPECT_THAT(harness.FoundIds("abcd0002"), ElementsAre("abcd0002")) << "an exact id wins over a prefix";
  EXPECT_THAT(harness.FoundIds("abcd"), ElementsAre("abcd00021", "abcd0002", "abcd0001"))
      << "not the job with that name";
  EXPECT_THAT(harness.FoundIds("lm"), ElementsAre("abcd00021", "abcd0002", "abcd0001"));
  EXPECT_THAT(harness.FoundIds("nothing"), IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(harness.Find("").status));
  const v1::FindJobsResponse found = std::get<v1::FindJobsResponse>(harness.Find("zzz").response);
  ASSERT_EQ(found.jobs_size(), 1);
  EXPECT_EQ(found.jobs(0).name(), "abcd");
  EXPECT_EQ(found.jobs(0).state(), v1::JOB_STATE_QUEUED);
  for (int i = 0; i < 25; ++i) harness.Submit(MakeSpec(1), absl::StrCat("many0000", 10 + i));
  const v1::FindJobsResponse many = std::get<v1::FindJobsResponse>(harness.Find("many").response);
  EXPECT_EQ(many.jobs_size(), 20);
  EXPECT_EQ(many.total(), 25u);
}

TEST(CoreLifecycle, List_IsNewestFirst_ByPages) {
  Harness harness;
  for (int i = 0; i < 5; ++i) harness.Submit(MakeSpec(1), absl::StrCat("job0000000", i));
  ListJobs list{CallId(9'001), {}};
  list.request.set_page_size(2);
  harness.Handle(list);
  auto first = std::get<v1::ListResponse>(harness.replies[CallId(9'001)].response);

  ASSERT_EQ(first.jobs_size(), 2);
  EXPECT_EQ(first.jobs(0).job_id(), "job00000004");
  list.call = CallId(9'002);
  list.request.set_page_token(first.next_page_token());
  list.request.set_page_size(10);
  harness.Handle(list);
  auto second = std::get<v1::ListResponse>(harness.replies[CallId(9'002)].response);
  EXPECT_EQ(second.jobs_size(), 3);
  EXPECT_EQ(second.next_page_token(), "");
}

TEST(CoreLifecycle, FinishedJobs_AreForgottenBeyondTheLimit) {
  Harness harness;
  for (int i = 0; i < 30; ++i) {
    harness.Submit(MakeSpec(1), absl::StrCat("job000000", 10 + i));
    harness.Cancel(absl::StrCat("job000000", 10 + i));
  }
  EXPECT_EQ(harness.core->state().jobs.size(), 20u);
  EXPECT_FALSE(harness.records.contains("job/job00000010"));
}

TEST(CoreLifecycle, Logs_AreRequestedFromTheHostsOfTheRanks_AndEndWhenThoseHaveSentThem) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  v1::LogsRequest request;
  request.set_job_id(kJob);
  request.add_ranks(1);

  harness.Handle(OpenLogs{ReaderId(5), request});
  ASSERT_EQ(host.desired().logs_size(), 1);
  EXPECT_EQ(host.desired().logs(0).ranks(0), 1u);
  harness.Handle(LogPushEnded{host.desired().logs(0).request_id()});

  EXPECT_TRUE(harness.ended_logs.at(ReaderId(5)).ok());
  EXPECT_EQ(host.desired().logs_size(), 0);

  harness.Handle(OpenLogs{ReaderId(6), request});
  harness.Handle(LogsClosed{ReaderId(6)});
  EXPECT_EQ(host.desired().logs_size(), 0) << "the request ends with its reader";
  host.Detach();
  harness.Handle(OpenLogs{ReaderId(7), request});
  EXPECT_TRUE(absl::IsUnavailable(harness.ended_logs.at(ReaderId(7))));
  EXPECT_THAT(std::string(harness.ended_logs.at(ReaderId(7)).message()), HasSubstr("w1"));
}

TEST(CoreLifecycle, ReadersOfOutput_BeyondTheLimitOfAHost_AreRefusedUntilOneEnds) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  RunJobOn(host);
  v1::LogsRequest request;
  request.set_job_id(kJob);
  for (uint64_t reader = 1; reader <= limits::kLogRequestsPerHost; ++reader) {
    harness.Handle(OpenLogs{ReaderId(reader), request});
  }
  EXPECT_EQ(harness.ended_logs.size(), 0u);

  harness.Handle(OpenLogs{ReaderId(1'000), request});
  EXPECT_TRUE(absl::IsUnavailable(harness.ended_logs.at(ReaderId(1'000))));
  EXPECT_THAT(std::string(harness.ended_logs.at(ReaderId(1'000)).message()), HasSubstr("host w1 sends output to"));
  EXPECT_EQ(host.desired().logs_size(), static_cast<int>(limits::kLogRequestsPerHost));

  harness.Handle(LogsClosed{ReaderId(1)});
  harness.Handle(OpenLogs{ReaderId(1'001), request});
  EXPECT_EQ(harness.ended_logs.count(ReaderId(1'001)), 0u);
}

// The daemon of rank 0 has crashed, and with it the newest reports were lost. The next daemon sends the stored fact
// immediately, and the reports when the trainer repeats them.
TEST(CoreLifecycle, EndOfRankZero_WaitsForItsRepeatedReports) {
  RunningJob running;
  auto& [harness, host] = running;
  host.Report(Key(kJob, 1, 0), 1, 8);
  v1::Fact fact;
  fact.mutable_finished()->set_step(10);
  host.ReportFact(Key(kJob, 1, 0), fact);
  harness.Advance(absl::Seconds(5));
  EXPECT_LT(harness.acks[host.session], host.sequence);

  host.Report(Key(kJob, 1, 0), 1, 10);

  EXPECT_EQ(harness.acks[host.session], host.sequence);
  EXPECT_EQ(harness.CountSteps(kJob), 10u);
}

TEST(CoreLifecycle, RankThatIsKilledAfterAllSteps_HasNotFailed_AlsoAfterACoordinatorRestart) {
  for (const bool killed_before : {false, true}) {
    Harness harness;
    FakeHost host(harness, "w1", 2, 11);
    RunJobOn(host);
    // If rank 1 is killed before the restart, the job still waits for the reports of the steps when it restarts.
    if (!killed_before) host.Report(Key(kJob, 1, 0), 1, 10);
    host.Finish(Key(kJob, 1, 0), 10);
    v1::Fact fact;
    fact.mutable_finished()->set_step(10);
    host.ReportFact(Key(kJob, 1, 1), fact);
    harness.Advance(limits::kStopGrace + absl::Seconds(1));
    ASSERT_EQ(host.desired().trainers_size(), 0) << "rank 1 must be killed, because it does not exit";
    if (killed_before) host.Apply();
    ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);

    host.Disconnect();
    harness.Restart();
    host.Attach();
    if (!killed_before) {
      host.running.clear();
      fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_STOPPED);
      host.ReportFact(Key(kJob, 1, 1), fact);
    }
    harness.Advance(absl::Seconds(2));

    EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_SUCCEEDED) << harness.Get(kJob).reason();
    EXPECT_EQ(harness.Get(kJob).restarts(), 0u);
  }
}

TEST(CoreLifecycle, SameErrorSixTimesInARowBeforeAStep_FailsTheJob_ButNotAfterAStep) {
  for (const bool makes_step : {false, true}) {
    Harness harness;
    FakeHost host(harness, "w1", 1, 11);
    host.Attach();
    harness.Submit(MakeSpec(1), kJob);
    const auto fail = [&](uint64_t generation, const std::string& line) {
      host.Apply();
      host.running.clear();
      v1::Fact fact;
      fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
      fact.mutable_exited()->set_code(1);
      fact.mutable_exited()->add_last_lines("loading");
      fact.mutable_exited()->add_last_lines(line);
      host.ReportFact(Key(kJob, generation, 0), fact);
      harness.Advance(absl::Seconds(10));
    };
    fail(1, "out of memory: 20 MiB");
    fail(2, "connection reset");
    for (uint64_t generation = 3; generation <= 7; ++generation) fail(generation, "out of memory: 21 MiB");
    ASSERT_EQ(harness.Get(kJob).generation(), 8u);
    if (makes_step) {
      BringToRunning(harness, host, kJob);
      host.Report(Key(kJob, 8, 0), 1, 1);
    }

    fail(8, "out of memory: 23 MiB");

    EXPECT_EQ(harness.Get(kJob).state(), makes_step ? v1::JOB_STATE_PLACED : v1::JOB_STATE_FAILED)
        << harness.Get(kJob).reason();
    if (makes_step) continue;
    EXPECT_EQ(harness.Get(kJob).restarts(), 7u);
    EXPECT_EQ(harness.Get(kJob).reason(),
              "rank 0 on w1 exited with code 1; the job has failed 6 times in a row with this error before its first "
              "step: out of memory: 23 MiB");
  }
}

TEST(CoreRestored, JobThatResumedFromAnEarlierJob_RestartsFromThatStep) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  harness.Submit(MakeSpec(1), kJob, /*resume=*/true);
  BringToRunning(harness, host, kJob, 6);
  v1::Fact fact;
  fact.mutable_restored()->set_step(5);
  host.ReportFact(Key(kJob, 1, 0), fact);
  EXPECT_EQ(harness.Get(kJob).last_step(), 5u);
  host.Kill(Key(kJob, 1, 0), 9);
  EXPECT_THAT(harness.Decisions(kJob), ::testing::Contains(HasSubstr("restarting from step 5")));
  host.Apply(/*start=*/false);
  ASSERT_EQ(harness.Get(kJob).generation(), 2u);
  host.Restored(Key(kJob, 2, 0), 5, "a");
  EXPECT_THAT(harness.Notices(kJob), ::testing::Not(Contains(HasSubstr("did not arrive"))))
      << "no report of this job is missing: the earlier job made these steps";
}

}  // namespace
}  // namespace trainyard
