// Jobs with a command in the coordinator's core: fewer ranks after a lost host, growth, and the time limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/policy/elastic.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

// Two hosts with two slots each, and an elastic command of two to four ranks.
struct ElasticJob {
  explicit ElasticJob(bool both_hosts = true) : first(harness, "w1", 2, 11), second(harness, "w2", 2, 22) {
    first.Attach();
    if (both_hosts) second.Attach();
    v1::JobSpec spec = CommandSpec(4);
    spec.mutable_command()->set_ranks_per_host(2);
    spec.mutable_command()->set_min_ranks(2);
    harness.Submit(spec, kJob);
    Run();
  }
  void Run() {
    first.Apply();
    if (!second.session.value()) return;
    second.Apply();
  }
  v1::Job Get() { return harness.Get(kJob); }
  int Ranks() { return Get().ranks_size(); }

  Harness harness;
  FakeHost first, second;
};

TEST(ElasticCommand, ContinuesWithFewerRanks_WhenAHostIsLost) {
  ElasticJob job;
  ASSERT_EQ(job.Get().state(), v1::JOB_STATE_RUNNING) << job.Get().reason();
  ASSERT_EQ(job.Ranks(), 4);

  job.second.Detach();
  job.harness.Advance(absl::Seconds(40));
  job.first.Apply();
  job.harness.Advance(absl::Seconds(1));
  job.first.Apply();

  EXPECT_EQ(job.Get().state(), v1::JOB_STATE_RUNNING) << job.Get().reason();
  EXPECT_EQ(job.Ranks(), 2);
  EXPECT_EQ(job.Get().restarts(), 1u);
}

TEST(ElasticCommand, GrowsOnceTheSlotsHaveBeenFreeForLong_WithoutUsingARestart) {
  ElasticJob job(/*both_hosts=*/false);
  ASSERT_EQ(job.Ranks(), 2);
  job.harness.Advance(absl::Seconds(100));

  job.second.Attach();
  job.harness.Advance(absl::Seconds(50));
  EXPECT_EQ(job.Get().generation(), 1u);
  job.harness.Advance(absl::Seconds(15));
  EXPECT_EQ(job.Get().state(), v1::JOB_STATE_STOPPING);
  EXPECT_THAT(job.Get().reason(), HasSubstr("grows from 2 to 4 ranks"));
  job.Run();
  job.Run();

  EXPECT_EQ(job.Get().state(), v1::JOB_STATE_RUNNING) << job.Get().reason();
  EXPECT_EQ(job.Ranks(), 4);
  EXPECT_EQ(job.Get().restarts(), 0u);
}

TEST(ElasticCommand, KeepsItsSlots_WhileItEndsInOrderToGrow) {
  ElasticJob job(/*both_hosts=*/false);
  job.harness.Advance(absl::Seconds(100));
  job.second.Attach();
  job.harness.Advance(absl::Seconds(65));
  ASSERT_EQ(job.Get().state(), v1::JOB_STATE_STOPPING);

  // Another job is submitted when the first rank has ended and the second has not.
  job.first.Exit(Key(kJob, 1, 0), 0);
  job.harness.Submit(CommandSpec(3), "other0000001");
  EXPECT_EQ(job.harness.Get("other0000001").state(), v1::JOB_STATE_QUEUED);
  job.Run();
  job.Run();

  EXPECT_EQ(job.Ranks(), 4);
  EXPECT_EQ(job.harness.Get("other0000001").state(), v1::JOB_STATE_QUEUED);
}

TEST(ElasticCommand, DoesNotGrow_WhileAnotherJobWaits_OrOnAHostThatComesAndGoes) {
  const GrowthFacts ready{.ranks = 2,
                          .possible = 4,
                          .running_for = absl::Seconds(60),
                          .fit_for = absl::Seconds(60),
                          .patience = absl::Seconds(60)};
  EXPECT_TRUE(DecideGrowth(ready).grow);
  GrowthFacts facts = ready;
  facts.others_wait = true;
  EXPECT_FALSE(DecideGrowth(facts).grow);
  facts = ready;
  facts.running_for = absl::Seconds(59);
  EXPECT_FALSE(DecideGrowth(facts).grow);

  ElasticJob job(/*both_hosts=*/false);
  job.harness.Advance(absl::Seconds(100));
  for (int i = 0; i < 3; ++i) {
    job.second.Attach();
    job.harness.Advance(absl::Seconds(40));
    job.second.Detach();
    job.harness.Advance(absl::Seconds(5));
  }
  EXPECT_EQ(job.Get().generation(), 1u);
}

TEST(ElasticCommand, GrowsAlthoughItReportsPhases) {
  ElasticJob job(/*both_hosts=*/false);
  job.second.Attach();
  for (int i = 0; i < 13; ++i) {
    job.first.ReportPosition(Key(kJob, 1, 0), i % 2 == 0 ? "evaluate" : "train", 1, "");
    job.harness.Advance(absl::Seconds(5));
  }

  EXPECT_THAT(job.Get().reason(), HasSubstr("grows from 2 to 4 ranks"));
}

TEST(ElasticCommand, ShowsHowManyRanksItHas_AndRefusesToReadTheOutputOfARankThatItLacks) {
  ElasticJob job(/*both_hosts=*/false);
  EXPECT_EQ(job.Get().current_ranks(), 2u);

  v1::LogsRequest request;
  request.set_job_id(kJob);
  request.add_ranks(3);
  job.harness.Handle(OpenLogs{ReaderId(1), request});

  ASSERT_EQ(job.harness.ended_logs.count(ReaderId(1)), 1u);
  EXPECT_THAT(job.harness.ended_logs.at(ReaderId(1)).message(),
              HasSubstr("has no rank 3; its ranks are 0 to 1: it runs with 2 of at most 4"));
}

TEST(CommandCheck, AHostThatFailsTheCheck_IsNotUsed_AndTheJobUsesNoRestart) {
  Harness harness;
  FakeHost first(harness, "w1", 2, 11), second(harness, "w2", 2, 22);
  first.Attach();
  second.Attach();
  v1::JobSpec spec = CommandSpec(2);
  spec.mutable_command()->mutable_check()->add_argv("nvidia-smi");
  spec.mutable_recovery()->set_max_restarts(0);
  harness.Submit(spec, kJob);
  const auto refuse = [&](FakeHost& host, uint64_t generation) {
    for (uint32_t rank : {0, 1}) {
      v1::Fact fact;
      fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_START_FAILED);
      fact.mutable_exited()->set_message("the check of this host (command.check) exited with code 3");
      fact.mutable_exited()->set_check_failed(true);
      host.ReportFact(Key(kJob, generation, rank), fact);
    }
  };

  refuse(first, 1);
  second.Apply();
  EXPECT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_RUNNING) << harness.Get(kJob).reason();
  EXPECT_EQ(harness.Get(kJob).restarts(), 0u);
  EXPECT_EQ(harness.Get(kJob).ranks(0).host(), "w2");

  Harness other;
  FakeHost only(other, "w1", 2, 11);
  only.Attach();
  other.Submit(spec, kJob);
  v1::Fact fact;
  fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  fact.mutable_exited()->set_check_failed(true);
  for (uint32_t rank : {0, 1}) only.ReportFact(Key(kJob, 1, rank), fact);
  EXPECT_EQ(other.Get(kJob).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(other.Get(kJob).reason(), HasSubstr("no other host can run the job"));
}

TEST(CommandCheck, MayTakeLongerThanAnotherGroupMayNeedToForm) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  v1::JobSpec spec = CommandSpec(1);
  spec.mutable_command()->mutable_check()->add_argv("dcgmi");
  spec.mutable_command()->mutable_check()->set_time_limit_s(300);
  harness.Submit(spec, kJob);

  harness.Advance(absl::Minutes(5));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED) << harness.Get(kJob).reason();

  harness.Advance(absl::Minutes(3));
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness.Get(kJob).reason(), HasSubstr("the group did not form: no progress for 7m"));
}

// The rank waits for the check, and its daemon connects again and is replaced.
TEST(CommandCheck, ARankThatWaitsForIt_IsStartedByTheNextDaemon_OrEndsIfTheJobIsPaused) {
  for (bool paused : {false, true}) {
    Harness harness;
    FakeHost host(harness, "w1", 1, 11);
    host.Attach();
    v1::JobSpec spec = CommandSpec(1);
    spec.mutable_command()->mutable_check()->add_argv("nvidia-smi");
    spec.mutable_recovery()->set_max_restarts(0);
    harness.Submit(spec, kJob);
    const v1::TrainerKey key = Key(kJob, 1, 0);
    host.running[FakeHost::Name(key)] = key;
    host.waiting.insert(FakeHost::Name(key));
    host.Detach();
    host.Attach();
    EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PLACED) << "no process has started";
    if (paused) harness.Pause(kJob);

    host.running.clear();
    host.ReplaceDaemon();
    harness.Advance(absl::Seconds(2));
    host.Apply();

    EXPECT_EQ(harness.StateOf(kJob), paused ? v1::JOB_STATE_PAUSED : v1::JOB_STATE_RUNNING)
        << harness.Get(kJob).reason();
    EXPECT_EQ(harness.Get(kJob).generation(), 1u);
  }
}

TEST(CommandCpus, AreCountedByPlacement) {
  Harness harness;
  FakeHost host(harness, "w1", 8, 11);  // with 4 cores
  host.Attach();
  v1::JobSpec spec = CommandSpec(1);
  spec.mutable_command()->set_cpus(3);
  harness.Submit(spec, kJob);
  harness.Submit(spec, "other0000001");
  harness.Submit(CommandSpec(4), "shares000001");
  spec.mutable_command()->set_cpus(5);
  harness.Submit(spec, "large0000001");
  host.Apply();

  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(harness.StateOf("shares000001"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(harness.StateOf("other0000001"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(harness.Get("other0000001").reason(), HasSubstr("1 rank with 3 CPUs each (command.cpus) requested"));
  EXPECT_THAT(harness.Get("large0000001").reason(), HasSubstr("the largest host has 4 CPUs"));
  host.Exit(Key(kJob, 1, 0), 0);
  host.Apply();
  EXPECT_EQ(harness.StateOf("other0000001"), v1::JOB_STATE_RUNNING);
}

TEST(CommandLimits, TheTimeLimit_EndsTheJob_AndIsNamed) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  v1::JobSpec spec = CommandSpec(2);
  spec.mutable_command()->set_time_limit_s(60);
  harness.Submit(spec, kJob);
  host.Apply();
  ASSERT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_RUNNING);

  harness.Advance(absl::Seconds(59));
  EXPECT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_RUNNING);
  harness.Advance(absl::Seconds(2));
  EXPECT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_STOPPING);
  host.Exit(Key(kJob, 1, 0), 0);
  host.Exit(Key(kJob, 1, 1), 0);

  EXPECT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(harness.Get(kJob).reason(), "the time limit of 60 s is used up (command.time_limit_s)");
}

TEST(CommandLimits, TheTimeLimit_EndsAJob_ThatWaitsForItsHostToReturn) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  v1::JobSpec spec = CommandSpec(2);
  spec.mutable_command()->set_time_limit_s(60);
  harness.Submit(spec, kJob);
  host.Apply();
  harness.Advance(absl::Seconds(50));
  host.Exit(Key(kJob, 1, 0), 1);  // the coordinator kills the other rank, whose end the host cannot report
  host.Detach();
  ASSERT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_RECOVERING) << harness.Get(kJob).reason();

  harness.Advance(absl::Seconds(15));

  EXPECT_EQ(harness.Get(kJob).state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(harness.Get(kJob).reason(), "the time limit of 60 s is used up (command.time_limit_s)");
}

TEST(CommandGoodput, TimeOfAScriptThatReportsNoSteps_CountsAsTraining_AlsoIfItFails) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(CommandSpec(2), kJob);
  host.Apply();
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
  harness.Advance(absl::Seconds(4));

  host.Kill(Key(kJob, 1, 1), 9);
  host.Apply(/*start=*/false);

  EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().train_s(), 8);
  EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().detect_s(), 0);
}

// Regression: the slot of a rank that had ended counted as free, and again as freed by the end of the job.
TEST(CommandForecast, CountsTheSlotOfAnEndedRankOnce) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  v1::JobSpec spec = CommandSpec(2);
  spec.mutable_command()->set_time_limit_s(60);
  harness.Submit(spec, kJob);
  host.Apply();
  host.Exit(Key(kJob, 1, 1), 0);
  ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);

  harness.Submit(CommandSpec(3), "other0000001");
  harness.Submit(CommandSpec(2), "other0000002");

  const v1::GetQueueResponse queue = harness.Queue();
  ASSERT_EQ(queue.jobs_size(), 2);
  EXPECT_EQ(queue.jobs(0).forecast(), "unknown: the attached hosts are not enough for it");
  EXPECT_EQ(queue.jobs(1).forecast(), "when job job00000001 ends");
}

// The command exits with 0 because of SIGTERM while its daemon is away, and the next daemon reports the exit code.
TEST(CommandPause, IsCarriedOut_IfTheDaemonIsReplacedWhileTheCommandEnds) {
  for (bool paused : {true, false}) {
    Harness harness;
    FakeHost host(harness, "w1", 2, 11);
    host.Attach();
    harness.Submit(CommandSpec(2), kJob);
    host.Apply();
    ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RUNNING);
    if (paused) harness.Pause(kJob);

    host.ReplaceDaemon();
    for (uint32_t rank = 0; rank < 2; ++rank) host.Exit(Key(kJob, 1, rank), 0);

    EXPECT_EQ(harness.StateOf(kJob), paused ? v1::JOB_STATE_PAUSED : v1::JOB_STATE_SUCCEEDED);
  }
}

// The daemon has sent SIGTERM or will do so, and the coordinator is restarted before the ranks have ended.
TEST(CommandPause, IsCarriedOutByTheNextCoordinator_WithoutAFailure) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  harness.Submit(CommandSpec(2), kJob);
  host.Apply();
  harness.Pause(kJob);
  host.Disconnect();

  harness.Restart();
  host.Attach();

  EXPECT_EQ(host.desired().trainers_size(), 0);
  host.Apply();
  EXPECT_EQ(harness.StateOf(kJob), v1::JOB_STATE_PAUSED) << harness.Get(kJob).reason();
  for (const EventPtr& event : harness.core->state().jobs.at(JobId(kJob)).history.durable()) {
    EXPECT_FALSE(event->has_notice() && event->notice().level() == "warning") << event->notice().text();
  }
}

}  // namespace
}  // namespace trainyard
