// Jobs with a command whose script reports: hangs, saves on request, and steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// A script of two ranks whose Python package reports every second.
struct Script {
  explicit Script(v1::OnHang on_hang = v1::ON_HANG_UNSPECIFIED, uint64_t time_limit_s = 0)
      : host(harness, "w1", 2, 11) {
    host.Attach();
    v1::JobSpec spec = CommandSpec(2);
    if (time_limit_s > 0) spec.mutable_command()->set_time_limit_s(time_limit_s);
    if (on_hang != v1::ON_HANG_UNSPECIFIED) spec.mutable_recovery()->set_on_hang(on_hang);
    harness.Submit(spec, kJob);
    host.Apply();
  }
  // Sends a report of rank 0 with the duration of the step that has ended, if it is not 0, and with what `more` adds.
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

TEST(ScriptHang, IsReported_AfterAMinute_AndRestartsTheJobOnlyOnRequest) {
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

TEST(ScriptHang, LongSteps_RaiseTheLimit) {
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
  script.Report("train", 4, 0, saved);  // every report repeats the checkpoint
  ASSERT_EQ(script.Get().checkpoints_size(), 1);
  EXPECT_EQ(script.Get().checkpoints(0).step(), 3u);
  EXPECT_EQ(script.Get().checkpoints(0).size_bytes(), 70u);
  EXPECT_EQ(script.RequestedSaves(), 0u) << "another process of this rank must not answer again";
  // A checkpoint that the coordinator knows already may answer a request.
  ASSERT_TRUE(script.Save().ok());
  EXPECT_EQ(script.RequestedSaves(), 2u);
  script.Report("train", 4, 0, [&saved](v1::RankReport& report) {
    saved(report);
    report.mutable_script_checkpoint()->set_save_request(2);
  });
  EXPECT_EQ(script.RequestedSaves(), 0u);
  EXPECT_EQ(script.Get().checkpoints_size(), 1);
  ASSERT_EQ(script.harness.saves.size(), 1u) << "metrics count the checkpoint once, though it answers two requests";
  EXPECT_EQ(script.harness.saves[0].size_bytes, 70u);
  script.harness.Advance(absl::Seconds(20));
  EXPECT_THAT(script.Save().message(), HasSubstr("has not reported for some seconds"));

  // A new process learns where the checkpoint is, and is not asked to save again.
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
  ASSERT_TRUE(script.CancelWithSave().ok()) << "a second request changes nothing";
  EXPECT_EQ(script.RequestedSaves(), 1u);
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(script.Get().reason(), HasSubstr("cancelled when its script has saved"));
  script.Report("train", 9, 0, saved(0));  // a save that the script chose itself is no answer
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING);

  script.host.Kill(Key(kJob, 1, 0), 9);
  script.host.Apply();
  script.harness.Advance(absl::Seconds(60));
  script.host.Apply();
  ASSERT_EQ(script.Get().generation(), 2u);
  script.Report("train", 10, 0, saved(script.RequestedSaves()));

  EXPECT_NE(script.Get().state(), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(script.CancelWithSave().ok()) << "a request that is repeated while the ranks end is no error";
  script.host.Apply();
  script.harness.Advance(absl::Seconds(1));
  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_CANCELLED) << script.Get().reason();
  EXPECT_THAT(script.Get().reason(), HasSubstr("enough"));
}

// Regression: a job that was paused before its script had saved was cancelled by its first save after it was resumed,
// and `cancel --save` of the paused job was answered with success and had no effect.
TEST(ScriptSaves, ACancellationWithASave_IsWithdrawnByAPause_AndAResumedJobContinues) {
  for (const bool resumes_at_once : {false, true}) {
    Script script;
    script.Report("train", 2, 0, [](v1::RankReport& report) { report.set_saves_on_request(true); });
    ASSERT_TRUE(script.CancelWithSave().ok());

    ASSERT_TRUE(script.harness.Pause(kJob).status.ok());
    if (resumes_at_once) {
      ASSERT_TRUE(script.harness.Resume(kJob).status.ok());
    }
    script.host.Apply();
    script.harness.Advance(absl::Seconds(1));
    if (!resumes_at_once) {
      ASSERT_EQ(script.Get().state(), v1::JOB_STATE_PAUSED) << script.Get().reason();
      EXPECT_THAT(script.CancelWithSave().message(), HasSubstr("not training"));
      ASSERT_TRUE(script.harness.Resume(kJob).status.ok());
    }
    script.host.Apply();
    script.harness.Advance(absl::Seconds(1));
    script.host.Apply();
    ASSERT_EQ(script.Get().generation(), 2u) << script.Get().reason();
    script.Report("train", 9, 0, [&](v1::RankReport& report) {
      report.set_saves_on_request(true);
      report.mutable_script_checkpoint()->set_step(9);
      report.mutable_script_checkpoint()->set_path("/runs/x/step-9");
      report.mutable_script_checkpoint()->set_save_request(script.RequestedSaves());
    });

    EXPECT_EQ(script.Get().state(), v1::JOB_STATE_RUNNING) << script.Get().reason();
    EXPECT_THAT(script.Decisions(), Contains(HasSubstr("not cancelled any more")));
  }
}

TEST(ScriptSaves, ASaveForACancellation_DoesNotChangeTheOutcomeOfAJobThatIsBeingEnded) {
  Script script(v1::ON_HANG_UNSPECIFIED, /*time_limit_s=*/60);
  script.Report("train", 2, 0, [](v1::RankReport& report) { report.set_saves_on_request(true); });
  ASSERT_TRUE(script.CancelWithSave().ok());
  script.harness.Advance(absl::Seconds(61));
  ASSERT_EQ(script.Get().state(), v1::JOB_STATE_STOPPING) << script.Get().reason();

  script.Report("train", 9, 0, [&](v1::RankReport& report) {
    report.set_saves_on_request(true);
    report.mutable_script_checkpoint()->set_step(9);
    report.mutable_script_checkpoint()->set_path("/runs/x/step-9");
    report.mutable_script_checkpoint()->set_save_request(script.RequestedSaves());
  });
  script.host.Exit(Key(kJob, 1, 0), 0);
  script.host.Exit(Key(kJob, 1, 1), 0);

  EXPECT_EQ(script.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(script.Get().reason(), "the time limit of 60 s is used up (command.time_limit_s)");
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
