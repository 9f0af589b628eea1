// Hangs and stragglers in the core: from reports to events, examinations and failures, and what a restart preserves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kHungJob[] = "jobjob000001";

class CoreHangTest : public ::testing::Test {
 protected:
  // Brings a job on one host to RUNNING; each rank then reports five steps of 0.1 s.
  void Begin(v1::OnHang on_hang = v1::ON_HANG_RESTART, uint32_t ranks = 2) {
    v1::JobSpec spec = MakeSpec(ranks);
    spec.mutable_train()->set_steps(100'000);
    spec.mutable_recovery()->set_on_hang(on_hang);
    host_.Attach();
    ASSERT_TRUE(harness_.Submit(spec, kHungJob).status.ok());
    BringToRunning(harness_, host_, kHungJob);
    for (int i = 0; i < 5; ++i) {
      ++step_;
      ReportFor(absl::Milliseconds(100));
    }
  }

  v1::RankReport Report(uint32_t rank) {
    v1::RankReport report;
    *report.mutable_key() = Key(kHungJob, harness_.Get(kHungJob).generation(), rank);
    report.set_phase(phase_);
    report.set_last_step(step_);
    for (int i = 0; i < num_idle_groups_; ++i) report.add_communicators()->set_name(absl::StrCat("group ", i));
    v1::CommunicatorReport& world = *report.add_communicators();
    world.set_name(in_channel_ ? "activations 1->0" : "world");
    bool waits = rank != culprit_;
    world.set_started(step_ * 2 + (waits ? 1 : 0));
    world.set_completed(step_ * 2);
    world.set_last_started(absl::StrCat("all-reduce ", world.started(), " (8 x fp64)"));
    if (waits) world.set_waits_in(world.last_started());
    if (waits && in_channel_)
      world.set_waits_in(absl::StrCat("receive ", world.started(), " (chunk 0, micro-batch 2)"));
    report.add_phase_times()->set_phase("train");
    report.mutable_phase_times(0)->set_longest_s(0.1);
    if (save_s_ > 0) {
      report.add_phase_times()->set_phase("save");
      report.mutable_phase_times(1)->set_longest_s(save_s_);
    }
    report.set_process_state(rank == stopped_ ? "T" : "S");
    report.set_silent(rank == stopped_);
    report.set_micro_batches_made(step_ * 2);
    report.set_steps_made(step_);
    report.set_compute_total_s(static_cast<double>(step_) * 2 * (rank == slow_ ? 0.05 : 0.02));
    if (rank == stopped_) report.set_age_s(absl::ToDoubleSeconds(harness_.now - stopped_at_));
    return report;
  }
  // Lets this time pass, in which each rank, or the daemon on its behalf, reports every half second.
  void ReportFor(absl::Duration by) {
    for (absl::Time end = harness_.now + by; harness_.now < end;) {
      RankReportsReceived received{host_.session, {}};
      for (uint32_t rank = 0; rank < harness_.Get(kHungJob).spec().resources().ranks(); ++rank) {
        *received.reports.add_reports() = Report(rank);
      }
      if (harness_.StateOf(kHungJob) == v1::JOB_STATE_RUNNING) harness_.Handle(std::move(received));
      harness_.Advance(std::min(absl::Milliseconds(500), end - harness_.now));
    }
  }
  void Stop(uint32_t rank) {
    stopped_ = culprit_ = rank;
    stopped_at_ = harness_.now;
  }
  std::vector<std::string> PublishedDecisions(const std::string& rule) {
    std::vector<std::string> texts;
    for (const EventPtr& event : harness_.WatchFrom(kHungJob, 0)) {
      if (event->has_notice() && event->notice().rule() == rule) texts.push_back(event->notice().text());
    }
    return texts;
  }

  Harness harness_;
  FakeHost host_{harness_, "w1", 4, 11};
  uint64_t step_ = 0;
  std::string phase_ = "train";
  int num_idle_groups_ = 0;  // communicators of each rank in which it does nothing
  bool in_channel_ = false;  // the ranks wait in a channel
  double save_s_ = 0;        // duration of a save
  uint32_t culprit_ = 99;    // the rank for which the others wait; 99: none
  uint32_t stopped_ = 99;    // the rank that is stopped; 99: none
  uint32_t slow_ = 99;       // the rank that is slow; 99: none
  absl::Time stopped_at_;
};

TEST_F(CoreHangTest, LongTokenizingAndLoading_AreNoHang_WhileTheRanksReport) {
  host_.Attach();
  ASSERT_TRUE(harness_.Submit(MakeSpec(2), kHungJob).status.ok());
  host_.Apply();
  for (int i = 0; i < 20; ++i) {
    phase_ = i < 10 ? "tokenize" : "load";
    RankReportsReceived received{host_.session, {}};
    for (uint32_t rank = 0; rank < 2; ++rank) *received.reports.add_reports() = Report(rank);
    harness_.Handle(std::move(received));
    harness_.Advance(absl::Seconds(30));
  }
  EXPECT_EQ(harness_.Get(kHungJob).state(), v1::JOB_STATE_STARTING);

  harness_.Advance(absl::Seconds(121));

  EXPECT_EQ(harness_.Get(kHungJob).state(), v1::JOB_STATE_RECOVERING)
      << "a group whose ranks no longer report is restarted, also in the phase load";
}

TEST_F(CoreHangTest, StoppedRank_IsNamedWithinFiveSeconds_AndTheGroupIsRestarted) {
  Begin();
  Stop(1);

  ReportFor(absl::Seconds(5));

  v1::Job job = harness_.Get(kHungJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_RECOVERING) << job.reason();
  EXPECT_THAT(job.reason(),
              HasSubstr("rank 1 on w1 is stopped (SIGSTOP, state T) and was not seen to enter all-reduce 11 "
                        "(8 x fp64) of step 6, in which 1 rank waits"));
  EXPECT_THAT(PublishedDecisions("hang"), SizeIs(1));
  EXPECT_THAT(host_.desired().trainers(), IsEmpty());

  host_.Apply();
  harness_.Advance(absl::Seconds(1));
  EXPECT_EQ(harness_.Get(kHungJob).generation(), 2u);
}

TEST_F(CoreHangTest, StoppedStageOfAPipeline_IsNamed_AlsoIfItsRanksHaveManyGroups) {
  num_idle_groups_ = 12;
  in_channel_ = true;
  Begin();
  Stop(1);

  ReportFor(absl::Seconds(5));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness_.Get(kHungJob).reason(),
              HasSubstr("rank 1 on w1 is stopped (SIGSTOP, state T); rank 0 on w1 waits in receive 11 (chunk 0, "
                        "micro-batch 2) of activations 1->0 in step 6"));
}

TEST_F(CoreHangTest, SuspectedRank_IsExaminedByItsDaemon_AndTheReasonContainsTheResult) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Milliseconds(3600));
  ASSERT_THAT(host_.desired().examine(), SizeIs(1));
  const v1::ExamineRequest request = host_.desired().examine(0);
  EXPECT_EQ(request.key().rank(), 1u);
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING);

  v1::Fact fact;
  fact.mutable_examined()->set_request_id(request.request_id());
  fact.mutable_examined()->set_state("R");
  fact.mutable_examined()->set_cpu_share(0.98);
  host_.ReportFact(request.key(), fact);
  EXPECT_THAT(host_.desired().examine(), IsEmpty());
  ReportFor(absl::Seconds(2));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness_.Get(kHungJob).reason(),
              HasSubstr("rank 1 on w1 is spinning (CPU share 0.98, state R) and has not"));
}

TEST_F(CoreHangTest, AfterTheDecision_TheStackIsRequested_AndDelaysTheEndOfTheTrainers) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Seconds(6));
  ASSERT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING) << "the decision is published immediately";
  ASSERT_THAT(host_.desired().examine(), SizeIs(1));
  const v1::ExamineRequest request = host_.desired().examine(0);
  EXPECT_TRUE(request.with_stack());
  EXPECT_THAT(host_.desired().trainers(), SizeIs(2)) << "the rank must still run to write its stack";

  v1::Fact fact;
  fact.mutable_examined()->set_request_id(request.request_id());
  fact.mutable_examined()->set_state("R");
  for (const char* frame : {"Spin()", "Loader::Next()", "main"}) fact.mutable_examined()->add_stack(frame);
  host_.ReportFact(request.key(), fact);

  EXPECT_THAT(host_.desired().trainers(), IsEmpty());
  EXPECT_THAT(PublishedDecisions("hang"), Contains("stack of rank 1 on w1:\n  Spin()\n  Loader::Next()\n  main"));
}

TEST_F(CoreHangTest, MissingStack_IsNotWaitedForLong_AndIsExplained) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Seconds(6));
  ASSERT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
  const v1::ExamineRequest request = host_.desired().examine(0);
  harness_.Advance(kStackWait + absl::Milliseconds(200));
  EXPECT_THAT(host_.desired().trainers(), IsEmpty());

  v1::Fact fact;
  fact.mutable_examined()->set_request_id(request.request_id());
  fact.mutable_examined()->set_state("D");
  fact.mutable_examined()->set_stack_note("the process did not answer within 3s (it is blocked in the kernel)");
  host_.ReportFact(request.key(), fact);
  EXPECT_THAT(PublishedDecisions("hang"),
              Contains(HasSubstr("no stack of rank 1 on w1: the process did not answer within 3s")));
  host_.Apply();
  harness_.Advance(absl::Seconds(1));
  EXPECT_EQ(harness_.Get(kHungJob).generation(), 2u);
}

TEST_F(CoreHangTest, OnHangNotify_ReportsTheHangAndItsEndOnce_AndLearnsNoStepTimeFromIt) {
  Begin(v1::ON_HANG_NOTIFY);
  Stop(1);
  ReportFor(absl::Seconds(20));
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(PublishedDecisions("hang"), SizeIs(1));

  stopped_ = culprit_ = 99;
  ++step_;
  v1::RankReport late = Report(1);
  late.mutable_phase_times(0)->set_longest_s(20);
  RankReportsReceived received{host_.session, {}};
  *received.reports.add_reports() = late;
  harness_.Handle(std::move(received));
  for (int i = 0; i < 4; ++i) {
    ++step_;
    ReportFor(absl::Milliseconds(500));
  }

  EXPECT_THAT(PublishedDecisions("hang"), SizeIs(2));
  EXPECT_THAT(PublishedDecisions("hang").back(), HasSubstr("the ranks continue after"));
  EXPECT_LT(harness_.Get(kHungJob).learned_step_s(), 1.0);
  EXPECT_EQ(harness_.Get(kHungJob).restarts(), 0u);
}

TEST_F(CoreHangTest, SlowSave_IsNoHang) {
  Begin();
  phase_ = "save";
  culprit_ = 0;

  ReportFor(absl::Seconds(110));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(PublishedDecisions("hang"), IsEmpty());
}

TEST_F(CoreHangTest, WaitForTheGrantOfTheLastSave_IsNoHang_HoweverFastSavesWere) {
  Begin();
  save_s_ = 0.4;
  phase_ = "leaving";
  culprit_ = 0;

  ReportFor(absl::Seconds(110));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(PublishedDecisions("hang"), IsEmpty());
}

TEST_F(CoreHangTest, PausesBetweenRetriesOfTheLastSave_AreNoHang_AlsoAfterACoordinatorRestart) {
  Begin();
  save_s_ = 0.4;
  phase_ = "save";
  culprit_ = 0;
  host_.LastSaveFails(Key(kHungJob, 1, 0), 100'000, "No space left on device");
  ReportFor(absl::Seconds(60));
  harness_.Restart();
  harness_.alive.clear();
  host_.Attach();

  ReportFor(absl::Seconds(60));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING) << harness_.Get(kHungJob).reason();
  EXPECT_THAT(PublishedDecisions("hang"), IsEmpty());
}

TEST_F(CoreHangTest, AfterARetriedLastSave_AStallIsCountedFromItsSuccess) {
  Begin();
  save_s_ = 0.4;
  phase_ = "save";
  culprit_ = 0;
  host_.LastSaveFails(Key(kHungJob, 1, 0), 100'000, "No space left on device");
  ReportFor(absl::Seconds(60));

  host_.Save(Key(kHungJob, 1, 0), 100'000);
  ReportFor(absl::Seconds(3));

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING) << harness_.Get(kHungJob).reason();
  EXPECT_THAT(PublishedDecisions("hang"), IsEmpty());
}

TEST_F(CoreHangTest, RestartedCoordinator_WaitsForTheWholeLimitAgain_AndKnowsTheStepTime) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Seconds(4));

  harness_.Restart();
  harness_.alive.clear();
  host_.Attach();
  ReportFor(absl::Seconds(4));
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING) << harness_.Get(kHungJob).reason();

  // The step time was stored, so the restarted coordinator need not learn it first.
  ReportFor(absl::Seconds(4));
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(harness_.Get(kHungJob).reason(), HasSubstr("rank 1"));
}

TEST_F(CoreHangTest, AfterAHangByTheDefaultLimit_TheLimitDoubles_AlsoAfterACoordinatorRestart) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Seconds(9));
  ASSERT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
  harness_.Advance(kStackWait);
  host_.Apply();
  harness_.Advance(absl::Seconds(1));
  culprit_ = 99;
  BringToRunning(harness_, host_, kHungJob);
  harness_.Restart();
  harness_.alive.clear();
  host_.Attach();
  for (int i = 0; i < 4; ++i) {
    ++step_;
    ReportFor(absl::Milliseconds(500));
  }

  culprit_ = 1;
  ReportFor(absl::Seconds(9));
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING) << harness_.Get(kHungJob).reason();
  ReportFor(absl::Seconds(4));
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
}

TEST_F(CoreHangTest, ReportsOfAnOlderGeneration_AreIgnored) {
  Begin();
  culprit_ = 1;
  for (int i = 0; i < 12 && harness_.StateOf(kHungJob) == v1::JOB_STATE_RUNNING; ++i) {
    v1::RankReport old = Report(1);
    old.mutable_key()->set_generation(7);
    old.set_last_step(1000 + static_cast<uint64_t>(i));
    RankReportsReceived received{host_.session, {}};
    *received.reports.add_reports() = old;
    harness_.Handle(std::move(received));
    ReportFor(absl::Milliseconds(500));
  }

  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RECOVERING);
}

TEST_F(CoreHangTest, Straggler_IsReportedOnce_AndShownInTheStatus) {
  Begin();
  slow_ = 1;
  for (int i = 0; i < 160; ++i) {
    ++step_;
    ReportFor(absl::Milliseconds(500));
  }

  EXPECT_THAT(PublishedDecisions("straggler"), SizeIs(1));
  EXPECT_THAT(PublishedDecisions("straggler"), Contains(HasSubstr("rank 1 on w1 is slow")));
  EXPECT_TRUE(harness_.Get(kHungJob).ranks(1).straggler());
  EXPECT_FALSE(harness_.Get(kHungJob).ranks(0).straggler());
  EXPECT_EQ(harness_.StateOf(kHungJob), v1::JOB_STATE_RUNNING);
}

TEST_F(CoreHangTest, Status_ShowsWhereARankWaits) {
  Begin();
  culprit_ = 1;
  ReportFor(absl::Seconds(1));

  EXPECT_EQ(harness_.Get(kHungJob).ranks(0).waits_in(), "all-reduce 11 (8 x fp64)");
  EXPECT_EQ(harness_.Get(kHungJob).ranks(1).waits_in(), "");
  EXPECT_NEAR(harness_.Get(kHungJob).learned_step_s(), 0.1, 1e-9);
}

TEST_F(CoreHangTest, DecisionsOfHosts_AreMergedIntoOneLinePerKey) {
  v1::JobSpec spec = MakeSpec(2);
  FakeHost second(harness_, "w2", 1, 12);
  FakeHost first(harness_, "w1", 1, 11);
  first.Attach();
  second.Attach();
  ASSERT_TRUE(harness_.Submit(spec, kHungJob).status.ok());
  auto report_decision = [&](FakeHost& host, uint32_t rank, const std::string& key, const std::string& value) {
    v1::Fact fact;
    v1::ResolvedKey& decision = *fact.mutable_decided()->add_decisions();
    decision.set_key(key);
    decision.set_value(value);
    decision.set_reason("4 cores");
    host.ReportFact(Key(kHungJob, 1, rank), fact);
  };
  auto decision = [&](const std::string& key) {
    const v1::Job job = harness_.Get(kHungJob);
    for (const v1::ResolvedKey& decision : job.decisions()) {
      if (decision.key() == key) return decision;
    }
    return v1::ResolvedKey();
  };

  report_decision(first, 0, "resources.threads_per_rank", "4");
  report_decision(second, 1, "resources.threads_per_rank", "4");
  EXPECT_EQ(decision("resources.threads_per_rank").value(), "4");
  EXPECT_EQ(decision("resources.threads_per_rank").reason(), "4 cores");

  report_decision(second, 1, "resources.threads_per_rank", "2");
  EXPECT_EQ(decision("resources.threads_per_rank").value(), "differs by host");
  EXPECT_EQ(decision("resources.threads_per_rank").reason(), "w1: 4 (4 cores); w2: 2 (4 cores)");

  report_decision(first, 0, "train.steps", "1");
  EXPECT_THAT(decision("train.steps").reason(), Not(HasSubstr("4 cores")));
  harness_.Restart();
  EXPECT_EQ(decision("resources.threads_per_rank").value(), "differs by host");
}

}  // namespace
}  // namespace trainyard
