// Jobs with a command in the coordinator's core: fewer ranks after a lost host, growth, and the limit of time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "coordinator/policy/elastic.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobSpec CommandSpec(uint32_t ranks) {
  v1::JobSpec spec;
  spec.set_name("command");
  spec.mutable_command()->add_argv("true");
  spec.mutable_command()->set_workdir("/");
  spec.mutable_resources()->set_ranks(ranks);
  return spec;
}

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

TEST(ElasticCommand, ShowsHowManyRanksItHas_AndRefusesToReadTheOutputOfOthers) {
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

TEST(CommandCheck, AHostThatFailsIt_IsNotUsed_WhichUsesNoRestart) {
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

// A script of two ranks whose Python package reports every second.
struct Script {
  explicit Script(v1::OnHang on_hang = v1::ON_HANG_UNSPECIFIED) : host(harness, "w1", 2, 11) {
    host.Attach();
    v1::JobSpec spec = CommandSpec(2);
    if (on_hang != v1::ON_HANG_UNSPECIFIED) spec.mutable_recovery()->set_on_hang(on_hang);
    harness.Submit(spec, kJob);
    host.Apply();
  }
  // Reports of rank 0, with the duration of the step that has ended, and what `more` adds.
  void Report(
      const std::string& phase, uint64_t step, double step_s = 0,
      const std::function<void(v1::RankReport&)>& more = [](v1::RankReport&) {}) {
    RankReportsReceived received{host.session, {}};
    v1::RankReport& report = *received.reports.add_reports();
    *report.mutable_key() = Key(kJob, Get().generation(), 0);
    report.set_phase(phase);
    report.set_last_step(step);
    if (step_s > 0) report.add_phase_times()->set_phase("train");
    if (step_s > 0) report.mutable_phase_times(0)->set_longest_s(step_s);
    more(report);
    harness.Handle(std::move(received));
  }
  // The script makes no progress for this long, and its reports say so.
  void Stall(const std::string& phase, uint64_t step, absl::Duration duration) {
    for (absl::Duration at; at < duration; at += absl::Seconds(1)) {
      harness.Advance(absl::Seconds(1));
      Report(phase, step);
    }
  }
  void MakeSteps(uint64_t steps) {
    for (uint64_t step = 1; step <= steps; ++step) {
      harness.Advance(absl::Seconds(2));
      Report("train", step, 2);
    }
  }
  absl::Status Save() {
    CallId call(900 + ++saves);
    v1::SaveRequest request;
    request.set_job_id(kJob);
    harness.Handle(SaveJob{call, request});
    return harness.replies.at(call).status;
  }
  absl::Status CancelWithSave() {
    CallId call(900 + ++saves);
    harness.Handle(CancelJob{call, JobId(kJob), "enough", /*save=*/true});
    return harness.replies.at(call).status;
  }
  uint64_t RequestedSaves() { return host.desired().trainers(0).save_requests(); }
  v1::Job Get() { return harness.Get(kJob); }
  std::vector<std::string> Decisions() { return harness.Decisions(kJob); }

  Harness harness;
  FakeHost host;
  uint64_t saves = 0;
};

TEST(ScriptHang, IsReported_AfterAMinuteOrTenSteps_AndRestartsOnlyOnRequest) {
  Script left;
  left.MakeSteps(3);
  left.Stall("train", 3, absl::Seconds(58));
  EXPECT_THAT(left.Decisions(), Not(Contains(HasSubstr("hang:"))));
  left.Stall("train", 3, absl::Seconds(8));
  EXPECT_THAT(left.Decisions(), Contains(AllOf(HasSubstr("hang: rank 0 on w1 makes no progress"),
                                               HasSubstr("limit 60.0 s"), HasSubstr("the job is left running"))));
  EXPECT_EQ(left.Get().state(), v1::JOB_STATE_RUNNING);
  left.Report("train", 4);
  left.harness.Advance(absl::Seconds(1));
  EXPECT_THAT(left.Decisions(), Contains(HasSubstr("hang: the ranks continue")));
  // The coordinator has learned that the job makes such pauses, so it does not report the next one.
  left.harness.Advance(absl::Seconds(1));
  left.Report("train", 5, 68);
  const size_t decisions = left.Decisions().size();
  left.Stall("train", 5, absl::Seconds(120));
  EXPECT_EQ(left.Decisions().size(), decisions);

  Script restarted(v1::ON_HANG_RESTART);
  restarted.MakeSteps(3);
  restarted.Stall("train", 3, absl::Seconds(66));
  EXPECT_EQ(restarted.Get().state(), v1::JOB_STATE_RECOVERING) << restarted.Get().reason();
  EXPECT_THAT(restarted.Get().reason(), HasSubstr("makes no progress"));
}

TEST(ScriptHang, IsNotConcludedFromMissingReports_NorInAPhaseOfUnknownLength) {
  Script silent(v1::ON_HANG_RESTART);
  silent.MakeSteps(2);
  silent.Stall("train", 2, absl::Seconds(2));
  // The process that reports has ended, and the daemon repeats its last report.
  for (int second = 0; second < 600; ++second) {
    silent.harness.Advance(absl::Seconds(1));
    silent.Report("train", 2, 0, [&](v1::RankReport& report) { report.set_age_s(second + 1); });
  }
  EXPECT_EQ(silent.Get().state(), v1::JOB_STATE_RUNNING) << silent.Get().reason();
  EXPECT_THAT(silent.Decisions(), Not(Contains(HasSubstr("hang:"))));

  Script evaluates(v1::ON_HANG_RESTART);
  evaluates.MakeSteps(3);
  evaluates.Stall("evaluate", 3, absl::Seconds(110));
  EXPECT_THAT(evaluates.Decisions(), Not(Contains(HasSubstr("hang:"))));
  evaluates.Stall("evaluate", 3, absl::Seconds(30));
  EXPECT_THAT(evaluates.Decisions(), Contains(HasSubstr("the usual duration of evaluate is not known yet")));
  EXPECT_EQ(evaluates.Get().state(), v1::JOB_STATE_RUNNING) << "a first evaluation may take any time";
}

TEST(ScriptHang, LongEvaluationsBetweenReports_RaiseTheLimit) {
  Script script(v1::ON_HANG_RESTART);
  script.harness.Advance(absl::Seconds(30));
  script.Report("train", 1, 30);
  script.Stall("train", 1, absl::Seconds(290));
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING) << script.Get().reason();
  script.Stall("train", 1, absl::Seconds(20));
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RECOVERING);
}

TEST(ScriptSaves, AreRequestedOnlyIfTheScriptAnswers_AndRecorded) {
  Script script;
  script.Report("train", 1);
  EXPECT_THAT(script.Save().message(), HasSubstr("when it calls trainyard.should_save()"));
  EXPECT_EQ(script.RequestedSaves(), 0u);

  script.Report("train", 2, 0, [](v1::RankReport& report) { report.set_saves_on_request(true); });
  EXPECT_TRUE(script.Save().ok());
  EXPECT_EQ(script.RequestedSaves(), 1u);
  const auto saved = [](v1::RankReport& report) {
    report.set_saves_on_request(true);
    report.mutable_script_checkpoint()->set_step(3);
    report.mutable_script_checkpoint()->set_path("/runs/x/step-3");
    report.mutable_script_checkpoint()->set_size_bytes(70);
    report.mutable_script_checkpoint()->set_save_request(1);
  };
  script.Report("train", 3, 0, saved);
  script.Report("train", 4, 0, saved);  // every report repeats it
  ASSERT_EQ(script.Get().checkpoints_size(), 1);
  EXPECT_EQ(script.Get().checkpoints(0).step(), 3u);
  EXPECT_EQ(script.Get().checkpoints(0).size_bytes(), 70u);
  EXPECT_EQ(script.RequestedSaves(), 0u) << "another process of this rank must not answer again";
  // A request may be answered by a checkpoint that is known.
  ASSERT_TRUE(script.Save().ok());
  EXPECT_EQ(script.RequestedSaves(), 2u);
  script.Report("train", 4, 0, [&saved](v1::RankReport& report) {
    saved(report);
    report.mutable_script_checkpoint()->set_save_request(2);
  });
  EXPECT_EQ(script.RequestedSaves(), 0u);
  EXPECT_EQ(script.Get().checkpoints_size(), 1);
  script.harness.Advance(absl::Seconds(20));
  EXPECT_THAT(script.Save().message(), HasSubstr("has not reported for some seconds"));

  // A new process learns where the checkpoint is, and is not asked again.
  script.host.Kill(Key(kJob, 1, 0), 9);
  script.host.Apply();
  script.harness.Advance(absl::Seconds(60));
  script.host.Apply();
  ASSERT_EQ(script.Get().generation(), 2u) << script.Get().reason();
  EXPECT_EQ(script.host.desired().trainers(0).restart_from().path(), "/runs/x/step-3");
  EXPECT_EQ(script.RequestedSaves(), 0u);
  EXPECT_FALSE(script.Save().ok()) << "the new process has not called should_save yet";
}

TEST(ScriptSaves, ThatWereRequestedAndNotMade_AreRequestedFromTheNextGroup) {
  Script script;
  script.Report("train", 2, 0, [](v1::RankReport& report) { report.set_saves_on_request(true); });
  ASSERT_TRUE(script.Save().ok());
  script.host.Kill(Key(kJob, 1, 0), 9);
  script.host.Apply();
  script.harness.Advance(absl::Seconds(60));
  script.host.Apply();

  EXPECT_EQ(script.Get().generation(), 2u);
  EXPECT_EQ(script.RequestedSaves(), 1u);
}

TEST(ScriptSaves, ACancellationWithASave_WaitsForTheSave_AlsoOfTheNextGroup) {
  Script script;
  const auto saved = [](uint64_t request) {
    return [request](v1::RankReport& report) {
      report.set_saves_on_request(true);
      report.mutable_script_checkpoint()->set_step(9);
      report.mutable_script_checkpoint()->set_path("/runs/x/step-9");
      report.mutable_script_checkpoint()->set_save_request(request);
    };
  };
  EXPECT_THAT(script.CancelWithSave().message(), HasSubstr("when it calls trainyard.should_save()"));
  script.Report("train", 2, 0, [](v1::RankReport& report) { report.set_saves_on_request(true); });

  ASSERT_TRUE(script.CancelWithSave().ok());
  ASSERT_TRUE(script.CancelWithSave().ok()) << "asked twice";
  EXPECT_EQ(script.RequestedSaves(), 1u);
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(script.Get().reason(), HasSubstr("cancelled when its script has saved"));
  script.Report("train", 9, 0, saved(0));  // a save of its own does not answer
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING);

  script.host.Kill(Key(kJob, 1, 0), 9);
  script.host.Apply();
  script.harness.Advance(absl::Seconds(60));
  script.host.Apply();
  ASSERT_EQ(script.Get().generation(), 2u);
  script.Report("train", 10, 0, saved(script.RequestedSaves()));

  EXPECT_NE(script.Get().state(), v1::JOB_STATE_RUNNING);
  script.host.Apply();
  script.harness.Advance(absl::Seconds(1));
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_CANCELLED) << script.Get().reason();
  EXPECT_THAT(script.Get().reason(), HasSubstr("enough"));
}

TEST(ScriptSaves, WithAnImpossibleStepOrPath_AreIgnored) {
  Script script;
  for (const auto& [step, path] : std::vector<std::pair<uint64_t, std::string>>{
           {0, "/a"}, {1, ""}, {1, "relative"}, {1, "/" + std::string(5000, 'a')}, {~uint64_t{0}, "/a"}}) {
    script.Report("train", 1, 0, [&step = step, &path = path](v1::RankReport& report) {
      report.mutable_script_checkpoint()->set_step(step);
      report.mutable_script_checkpoint()->set_path(path);
    });
  }

  EXPECT_EQ(script.Get().checkpoints_size(), 0);
}

TEST(ScriptSteps, WithoutALoss_AreShownWithoutOne) {
  Script script;
  const auto step = [&script](uint64_t number, std::optional<double> loss) {
    script.Report("train", number, 0, [&](v1::RankReport& report) {
      report.add_steps()->set_step(number);
      if (loss.has_value()) report.mutable_steps(0)->set_loss(*loss);
    });
  };
  step(1, 0.0);
  EXPECT_TRUE(script.Get().has_last_loss());
  step(2, std::nullopt);
  EXPECT_EQ(script.Get().last_step(), 2u);
  EXPECT_FALSE(script.Get().has_last_loss());
}

}  // namespace
}  // namespace trainyard
