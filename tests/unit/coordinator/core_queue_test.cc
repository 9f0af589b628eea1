// The queue with the production core: quotas, priorities, preemption, and what survives a restart of the coordinator.
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLow[] = "job0000low01";
constexpr char kLow2[] = "job0000low02";
constexpr char kHigh[] = "job000high01";

QueueRules WithPreemption() {
  QueueRules rules;
  rules.preemption = true;
  rules.min_run = absl::Seconds(30);
  return rules;
}

v1::JobSpec MakeQueuedSpec(uint32_t ranks, uint32_t priority, const std::string& name = "default") {
  v1::JobSpec spec = MakeSpec(ranks);
  spec.mutable_train()->set_steps(1'000);
  spec.set_priority(priority);
  spec.set_namespace_(name);
  return spec;
}

// One host, and jobs that run in its slots.
struct QueuedHost {
  explicit QueuedHost(uint32_t slots = 2, const QueueRules& rules = WithPreemption())
      : harness(absl::Seconds(3), rules), host(harness, "w1", slots, 11) {
    host.Attach();
  }
  v1::Job Get(const std::string& job) { return harness.Get(job); }
  void Run(const std::string& job, uint32_t ranks, uint32_t priority, const std::string& name = "default") {
    ASSERT_TRUE(harness.Submit(MakeQueuedSpec(ranks, priority, name), job).status.ok());
    BringToRunning(harness, host, job);
  }
  void StopAndSave(const std::string& job, uint64_t step) {
    const uint64_t generation = Get(job).generation();
    const uint32_t ranks = Get(job).spec().resources().ranks();
    host.Report(Key(job, generation, 0), 1, step);
    host.Save(Key(job, generation, 0), step);
    for (uint32_t rank = 0; rank < ranks; ++rank) host.Finish(Key(job, generation, rank), step, true);
  }
  // A job of low priority has run for long enough to be preempted. A job of high priority arrives, and the first job
  // is requested to stop.
  void PreemptLow() {
    Run(kLow, 2, 10);
    harness.Advance(absl::Seconds(31));
    harness.Submit(MakeQueuedSpec(2, 90), kHigh);
    harness.Advance(absl::Seconds(2));
    ASSERT_EQ(Get(kLow).state(), v1::JOB_STATE_STOPPING) << Get(kLow).reason();
  }

  Harness harness;
  FakeHost host;
};

TEST(CoreQueue, Preemption_Saves_FreesTheSlots_AndTheJobStartsAgainByItself) {
  QueuedHost one;
  one.PreemptLow();
  EXPECT_TRUE(one.host.desired().trainers(0).stop());
  EXPECT_TRUE(one.host.desired().trainers(0).stop_needs_save());
  EXPECT_EQ(one.Get(kLow).preempted_by(), kHigh);
  EXPECT_THAT(one.Get(kHigh).reason(), HasSubstr(kLow));
  EXPECT_EQ(one.harness.Queue().jobs(0).cause(), "preemption");
  EXPECT_THAT(one.harness.Queue().jobs(0).waits_for(), ElementsAre(kLow));

  one.StopAndSave(kLow, 5);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(one.Get(kLow).preemptions(), 1u);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED) << one.Get(kHigh).reason();
  EXPECT_THAT(one.host.desired().jobs(), ElementsAre(kHigh)) << "it may need the memory of the other's snapshots";
  EXPECT_THAT(one.harness.Decisions(kLow), Contains(HasSubstr("preemption: preempted by job job000high01")));
  EXPECT_THAT(one.harness.Decisions(kHigh), Contains(HasSubstr("preemption: this job of priority 90 preempts")));

  BringToRunning(one.harness, one.host, kHigh);
  one.host.Report(Key(kHigh, 1, 0), 1, 1'000);
  for (uint32_t rank = 0; rank < 2; ++rank) one.host.Finish(Key(kHigh, 1, rank), 1'000);

  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_SUCCEEDED) << one.Get(kHigh).reason();
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.Get(kLow).restarts(), 0u);
  EXPECT_EQ(one.Get(kLow).preempted_by(), "");
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
  EXPECT_EQ(one.Get(kLow).goodput().lost_s(), 0);
}

TEST(CoreQueue, Preemption_WaitsUntilTheJobHasTrainedForLongEnough) {
  QueuedHost one;
  one.Run(kLow, 2, 10);
  one.harness.Advance(absl::Seconds(10));
  one.harness.Submit(MakeQueuedSpec(2, 90), kHigh);
  one.harness.Advance(absl::Seconds(10));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(one.harness.Queue().jobs(0).reason(), HasSubstr("job job0000low01 is protected for"));

  one.harness.Advance(absl::Seconds(12));

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_STOPPING);
}

TEST(CoreQueue, AFailedSave_SparesTheJob_AndAnotherOneIsPreempted) {
  QueuedHost one(2);
  one.Run(kLow, 1, 10);
  one.Run(kLow2, 1, 20);
  one.harness.Advance(absl::Seconds(31));
  one.harness.Submit(MakeQueuedSpec(1, 90), kHigh);
  one.harness.Advance(absl::Seconds(2));
  ASSERT_EQ(one.Get(kLow).state(), v1::JOB_STATE_STOPPING);

  one.host.SaveFails(Key(kLow, 1, 0), 5, /*stop_request=*/1);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(one.Get(kLow).preempted_by(), "");
  EXPECT_THAT(one.Get(kLow).reason(), HasSubstr("not preempted again for 10m"));
  EXPECT_EQ(one.Get(kLow2).state(), v1::JOB_STATE_STOPPING) << "the other one is preempted in the same turn";
  one.StopAndSave(kLow2, 7);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED);
}

TEST(CoreQueue, ASparedJob_StaysSparedInTheNextCoordinator) {
  QueuedHost one;
  one.PreemptLow();
  one.host.SaveFails(Key(kLow, 1, 0), 5, /*stop_request=*/1);
  one.host.Disconnect();
  one.harness.Restart();
  one.host.Attach();

  one.harness.Advance(absl::Minutes(8));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING);
  one.harness.Advance(absl::Minutes(3));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_STOPPING);
}

TEST(CoreQueue, Preemption_SurvivesACoordinatorRestart_AtEachPoint) {
  // Point 0: while the job stops. Point 1: after it has stopped.
  for (int point = 0; point < 2; ++point) {
    QueuedHost one;
    one.PreemptLow();
    if (point == 1) one.StopAndSave(kLow, 5);
    one.host.Disconnect();
    one.harness.Restart();
    one.host.Attach();
    if (point == 0) {
      ASSERT_EQ(one.Get(kLow).state(), v1::JOB_STATE_STOPPING);
      EXPECT_TRUE(one.host.desired().trainers(0).stop()) << "the stop is requested again";
      EXPECT_EQ(one.harness.Queue().jobs(0).cause(), "preemption");
      one.StopAndSave(kLow, 5);
    }

    EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED) << "point " << point << ": " << one.Get(kHigh).reason();
    EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_QUEUED) << "point " << point;
    EXPECT_EQ(one.Get(kLow).preempted_by(), kHigh) << "point " << point;
  }
}

TEST(CoreQueue, APauseDuringPreemption_LastsEvenIfSlotsAreFree) {
  QueuedHost one;
  one.PreemptLow();
  ASSERT_TRUE(one.harness.Pause(kLow).status.ok());
  one.StopAndSave(kLow, 5);
  ASSERT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get(kLow).preempted_by(), "");
  one.harness.Cancel(kHigh);
  one.host.Apply(/*start=*/false);
  one.harness.Advance(absl::Seconds(5));

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PAUSED) << "only a user resumes it";
  one.harness.Resume(kLow);
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PLACED);
}

TEST(CoreQueue, ACancelDuringPreemption_Cancels_AndThePreemptorStarts) {
  for (bool save : {false, true}) {
    QueuedHost one;
    one.PreemptLow();
    ASSERT_TRUE((save ? one.harness.CancelSaved(kLow) : one.harness.Cancel(kLow)).status.ok());
    one.StopAndSave(kLow, 5);

    EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_CANCELLED);
    EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED);
  }
}

TEST(CoreQueue, AWithdrawnPreemptor_LeavesTheSlotsToThePreemptedJob) {
  QueuedHost one;
  one.PreemptLow();
  one.harness.Cancel(kHigh);
  one.StopAndSave(kLow, 5);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.Get(kLow).generation(), 2u);
}

// A save that fails permanently during a preemption must not end the job, which repeats the unsaved steps later.
TEST(CoreQueue, RanksThatCannotSaveInAPreemption_DoNotFailTheJob) {
  QueuedHost one;
  one.PreemptLow();
  for (uint32_t rank = 0; rank < 2; ++rank) one.host.FinishOnly(Key(kLow, 1, rank), 5, true, "No space left on device");
  one.host.Apply(/*start=*/false);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_QUEUED) << one.Get(kLow).reason();
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED);
}

TEST(CoreQueue, AStartedPreemptor_IsNotPreemptedBack_AndTheProtectionGrows) {
  QueuedHost one;
  one.PreemptLow();
  one.StopAndSave(kLow, 5);
  BringToRunning(one.harness, one.host, kHigh);
  one.harness.Advance(absl::Minutes(20));
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_RUNNING);
  one.harness.Cancel(kHigh);
  one.StopAndSave(kHigh, 9);
  BringToRunning(one.harness, one.host, kLow, 6);
  one.harness.Submit(MakeQueuedSpec(2, 90), "job000high02");

  one.harness.Advance(absl::Seconds(50));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING) << "after one preemption, min_run is 60 s instead of 30 s";
  one.harness.Advance(absl::Seconds(15));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_STOPPING);
}

TEST(CoreQueue, WithoutPermission_NoJobIsPreempted) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 2, 10);
  one.harness.Submit(MakeQueuedSpec(2, 90), kHigh);
  one.harness.Advance(absl::Minutes(20));

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
}

TEST(CoreQueue, HigherPriority_StartsFirst_AndSetPriorityChangesTheOrder) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 2, 50);
  one.harness.Submit(MakeQueuedSpec(2, 20), kLow2);
  one.harness.Submit(MakeQueuedSpec(2, 90), kHigh);
  v1::GetQueueResponse queue = one.harness.Queue();
  ASSERT_EQ(queue.jobs_size(), 2);
  EXPECT_EQ(queue.jobs(0).job_id(), kHigh);
  EXPECT_EQ(queue.jobs(1).position(), 2u);
  EXPECT_EQ(queue.jobs(0).cause(), "slots");

  ASSERT_TRUE(one.harness.SetPriority(kLow2, 95, "the operator at 127.0.0.1:5012").status.ok());
  ASSERT_TRUE(one.harness.SetPriority(kLow2, 95).status.ok()) << "the same priority again is no error";

  EXPECT_EQ(one.harness.Queue().jobs(0).job_id(), kLow2);
  EXPECT_THAT(one.harness.Decisions(kLow2), Contains("operator: priority changed from 20 to 95"));
  EXPECT_THAT(one.harness.Decisions(kLow2),
              Contains("operator: set-priority requested by the operator at 127.0.0.1:5012"));
  one.harness.Restart();
  one.host.Attach();
  EXPECT_EQ(one.Get(kLow2).priority(), 95u);
  one.harness.Cancel(kLow);
  one.StopAndSave(kLow, 5);
  EXPECT_EQ(one.Get(kLow2).state(), v1::JOB_STATE_PLACED);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
}

TEST(CoreQueue, SetPriority_IsRefused_ForEndedJobs_AndAboveTheLimit) {
  QueueRules rules;
  rules.namespaces["default"].max_priority = 60;
  QueuedHost one(2, rules);
  EXPECT_TRUE(absl::IsNotFound(one.harness.SetPriority("job00000none", 5).status));
  one.Run(kLow, 2, 50);
  EXPECT_THAT(std::string(one.harness.SetPriority(kLow, 61).status.message()), HasSubstr("above 60"));
  one.harness.Cancel(kLow);
  one.StopAndSave(kLow, 5);
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.SetPriority(kLow, 10).status));
  EXPECT_TRUE(absl::IsFailedPrecondition(one.harness.Submit(MakeQueuedSpec(1, 61), kHigh).status));
}

TEST(CoreQueue, Quotas_HoldBackJobs_AndALowerQuotaAfterARestart_EndsNothing) {
  QueueRules rules;
  rules.namespaces["research"].max_slots = 2;
  QueuedHost one(4, rules);
  one.Run(kLow, 2, 50, "research");
  ASSERT_TRUE(one.harness.Submit(MakeQueuedSpec(1, 90, "research"), kHigh).status.ok());
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(one.Get(kHigh).reason(), HasSubstr("namespace research uses 2 of 2 slots"));
  EXPECT_EQ(one.harness.Queue().jobs(0).cause(), "quota");
  one.harness.queue.namespaces["research"].max_slots = 1;
  one.harness.Restart();
  one.host.Attach();
  one.harness.Advance(absl::Seconds(2));
  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RUNNING);

  one.harness.RequestRestart(kLow);
  one.StopAndSave(kLow, 5);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PLACED) << "it started before, so it may start again";
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
  const v1::GetQueueResponse queue = one.harness.Queue("research");
  ASSERT_EQ(queue.namespaces_size(), 1);
  EXPECT_EQ(queue.namespaces(0).slots(), 2u);
  EXPECT_EQ(queue.namespaces(0).max_slots(), 1u);
  EXPECT_EQ(queue.namespaces(0).share(), 0.5);
}

TEST(CoreQueue, TooManyWaitingJobs_AreRefused_ButARetriedSubmissionIsAnswered) {
  QueueRules rules;
  rules.max_queued = 2;
  rules.namespaces["small"].max_queued = 1;
  QueuedHost one(1, rules);
  one.Run(kLow, 1, 50);
  ASSERT_TRUE(one.harness.Submit(MakeQueuedSpec(1, 50, "small"), "job00000001a").status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(one.harness.Submit(MakeQueuedSpec(1, 50, "small"), "job00000001b").status));
  ASSERT_TRUE(one.harness.Submit(MakeQueuedSpec(1, 50), "job00000001c").status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(one.harness.Submit(MakeQueuedSpec(1, 50), "job00000001d").status));

  EXPECT_TRUE(one.harness.Submit(MakeQueuedSpec(1, 50), "job00000001c").status.ok()) << "the same request again";
  one.harness.Restart();
  EXPECT_TRUE(absl::IsResourceExhausted(one.harness.Submit(MakeQueuedSpec(1, 50), "job00000001d").status));
}

TEST(CoreQueue, InvalidKeysThroughTheApi_AreRefusedTogether) {
  QueuedHost one;
  v1::JobSpec spec = MakeQueuedSpec(1, 101, "No Such");

  const absl::Status status = one.harness.Submit(spec, kLow).status;

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("priority: must be"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("namespace: must consist of"));
}

TEST(CoreQueue, TheQueue_IsListedInPages_AndForOneNamespaceOnRequest) {
  QueuedHost one(1, QueueRules());
  one.Run(kLow, 1, 50);
  for (int i = 0; i < 5; ++i) {
    one.harness.Submit(MakeQueuedSpec(1, 50, i % 2 == 0 ? "a" : "b"), absl::StrCat("job0000page", i));
  }
  std::vector<std::string> ids;
  std::string token;
  do {
    const v1::GetQueueResponse page = one.harness.Queue("", 2, token);
    EXPECT_EQ(page.total(), 5u);
    EXPECT_LE(page.jobs_size(), 2);
    for (const v1::QueuedJob& job : page.jobs()) ids.push_back(job.job_id());
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_THAT(ids, ElementsAre("job0000page0", "job0000page1", "job0000page2", "job0000page3", "job0000page4"));

  const v1::GetQueueResponse only = one.harness.Queue("b");

  ASSERT_EQ(only.jobs_size(), 2);
  EXPECT_EQ(only.jobs(0).job_id(), "job0000page1");
  EXPECT_EQ(only.jobs(0).position(), 2u);
}

TEST(CoreQueue, AForecast_FollowsFromStepsAndStepTimes) {
  QueuedHost one(1, QueueRules());
  one.Run(kLow, 1, 50);
  one.harness.Submit(MakeQueuedSpec(1, 50), kHigh);
  EXPECT_THAT(one.harness.Queue().jobs(0).forecast(), HasSubstr("job job0000low01 has made no step yet"));
  one.host.Report(Key(kLow, 1, 0), 1, 400);
  one.harness.Advance(absl::Seconds(3));

  const v1::QueuedJob job = one.harness.Queue().jobs(0);

  EXPECT_NEAR(job.start_in_s(), 600 * 0.01, 0.5);
  EXPECT_EQ(job.forecast(), "when job job0000low01 ends");
}

// The slots of a group that failed are kept for it until it can start again.
TEST(CoreQueue, ARecoveringJob_KeepsItsSlots) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 2, 10);
  one.harness.Submit(MakeQueuedSpec(1, 90), kHigh);
  one.host.Report(Key(kLow, 1, 0), 1, 3);
  one.host.Kill(Key(kLow, 1, 0), 9);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
  one.host.Apply();
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
  one.harness.Advance(absl::Seconds(1));

  EXPECT_EQ(one.Get(kLow).generation(), 2u) << one.Get(kLow).reason();
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);
}

// Regression: the slots that were kept for a recovering job, or reserved for one that had waited for long, were free
// after its pause, but the waiting jobs were considered only at the next unrelated event.
TEST(CoreQueue, SlotsThatWereKeptForAPausedJob_AreUsedAtOnce) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 2, 10);
  one.harness.Submit(MakeQueuedSpec(1, 90), kHigh);
  one.host.Kill(Key(kLow, 1, 0), 9);
  one.host.Apply();  // ends rank 1
  one.host.Apply();  // starts generation 2
  one.host.Kill(Key(kLow, 2, 0), 9);
  one.host.Apply();
  ASSERT_EQ(one.Get(kLow).state(), v1::JOB_STATE_RECOVERING) << "it has made no step, so it waits for a moment";
  ASSERT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_QUEUED);

  one.harness.Pause(kLow);

  EXPECT_EQ(one.Get(kLow).state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(one.Get(kHigh).state(), v1::JOB_STATE_PLACED) << one.Get(kHigh).reason();
  EXPECT_THAT(one.harness.failures, ElementsAre("signal", "signal")) << "each generation is counted once";
}

TEST(CoreQueue, SlotsThatWereReservedForAPausedJob_AreUsedAtOnce) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 1, 50);
  one.harness.Submit(MakeQueuedSpec(2, 90), kHigh);
  one.harness.Advance(absl::Minutes(11));
  one.harness.Submit(MakeQueuedSpec(1, 50), kLow2);
  ASSERT_THAT(one.Get(kLow2).reason(), HasSubstr("reserved for job job000high01"));

  one.harness.Pause(kHigh);

  EXPECT_EQ(one.Get(kLow2).state(), v1::JOB_STATE_PLACED) << one.Get(kLow2).reason();
}

// Regression: a job that starts again on another host left the slots that were kept for it, and no other job got them.
TEST(CoreQueue, SlotsThatWereKeptForAJobThatMoves_AreUsedAtOnce) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  first.Attach();
  harness.Submit(MakeQueuedSpec(1, 50), kLow);
  second.Attach();
  v1::JobSpec spec = MakeQueuedSpec(1, 50);
  spec.mutable_resources()->add_hosts("w1");
  harness.Submit(spec, kHigh);
  BringToRunning(harness, first, kLow);
  first.Kill(Key(kLow, 1, 0), 9);
  first.Apply();
  first.Exit(Key(kLow, 2, 0), 127);
  ASSERT_EQ(harness.StateOf(kLow), v1::JOB_STATE_RECOVERING) << "it has made no step, so it waits for a moment";

  harness.Advance(absl::Seconds(1));

  EXPECT_EQ(harness.Get(kLow).ranks(0).host(), "w2") << harness.Get(kLow).reason();
  EXPECT_EQ(harness.StateOf(kHigh), v1::JOB_STATE_PLACED) << harness.Get(kHigh).reason();
}

// Regression: a job that waited only because hosts were still connecting was not considered again when the time that
// hosts have for this was over.
TEST(CoreQueue, AfterARestart_AHostThatDoesNotComeBack_DelaysJobsOnlyForAMoment) {
  Harness harness;
  FakeHost first(harness, "w1", 1, 11), second(harness, "w2", 1, 22);
  for (FakeHost* host : {&first, &second}) {
    host->Attach();
    harness.SetHostState(host->name, v1::SetHostRequest::ACTION_CORDON);
  }
  harness.Submit(MakeQueuedSpec(2, 90), kHigh);
  harness.Submit(MakeQueuedSpec(1, 10), kLow);
  harness.Advance(absl::Minutes(11));
  first.Disconnect();
  second.Disconnect();
  harness.Restart();
  first.Attach();
  harness.SetHostState("w1", v1::SetHostRequest::ACTION_UNCORDON);
  EXPECT_EQ(harness.StateOf(kLow), v1::JOB_STATE_QUEUED) << "the job of two ranks is ahead, and w2 may still attach";

  harness.Advance(absl::Seconds(8));

  EXPECT_EQ(harness.StateOf(kLow), v1::JOB_STATE_PLACED) << harness.Get(kLow).reason();
}

// A store of an earlier version has no priorities, namespaces or admissions.
TEST(CoreQueue, JobsOfAnEarlierVersion_HaveTheDefaults) {
  QueuedHost one(2, QueueRules());
  one.Run(kLow, 2, 10);
  one.harness.Submit(MakeQueuedSpec(1, 10), kLow2);
  for (auto& [key, value] : one.harness.records) {
    if (!absl::StartsWith(key, "job/")) continue;
    v1::JobRecord record;
    ASSERT_TRUE(record.ParseFromString(value));
    record.clear_admitted();
    record.mutable_job()->clear_priority();
    record.mutable_job()->clear_queued_unix_ms();
    record.mutable_job()->mutable_spec()->clear_priority();
    record.mutable_job()->mutable_spec()->clear_namespace_();
    value = record.SerializeAsString();
  }
  one.harness.Restart();
  one.host.Attach();

  const v1::GetQueueResponse queue = one.harness.Queue();

  ASSERT_EQ(queue.jobs_size(), 1);
  EXPECT_EQ(queue.jobs(0).priority(), 50u);
  EXPECT_EQ(queue.jobs(0).namespace_(), "default");
  EXPECT_EQ(queue.namespaces(0).slots(), 2u) << "a running job counts";
}

}  // namespace
}  // namespace trainyard
