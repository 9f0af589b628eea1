// The goodput of jobs, with the production core on a manual clock.
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

TEST(CoreGoodput, OfARestartedJob_AddsUp) {
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
  host.Apply(/*start=*/false);

  v1::Goodput goodput = harness.Get(kJob).goodput();
  EXPECT_DOUBLE_EQ(goodput.queue_s(), 4);
  EXPECT_DOUBLE_EQ(goodput.start_s(), 2);
  EXPECT_DOUBLE_EQ(goodput.train_s(), 8);
  EXPECT_DOUBLE_EQ(goodput.lost_s(), 6) << "step 5, which is in no checkpoint";
  EXPECT_DOUBLE_EQ(goodput.detect_s(), 2);
  EXPECT_DOUBLE_EQ(goodput.recover_s(), 4);
  EXPECT_DOUBLE_EQ(goodput.total_s(), 26);
}

TEST(CoreGoodput, AfterTheWallClockWasSet_DoesNotJumpWhenTheNextCoordinatorStarts) {
  Harness harness;
  harness.Submit(MakeSpec(2), kJob);
  harness.Advance(absl::Seconds(2));
  const absl::Time corrected = harness.now + absl::Hours(1);  // the clock was behind when the coordinator started
  harness.Handle(Tick{}, CoreTime(harness.now, harness.now, corrected));

  harness.now = corrected;
  harness.Restart();
  harness.Advance(absl::Seconds(3));

  EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().queue_s(), 10);
}

// Rank 1 dies while no coordinator runs. Steps 1 to 4 took 4 s; the next coordinator starts 6 s after them. Either the
// daemon still has the report of step 4, or it is lost and only the store shows when the step was completed.
TEST(CoreGoodput, OfAFailureWithoutACoordinator_CountsItsStepsAsLost) {
  for (bool reported : {true, false}) {
    Harness harness;
    harness.Submit(MakeSpec(2), kJob);
    FakeHost host(harness, "w1", 2, 11);
    host.Attach();
    BringToRunning(harness, host, kJob);
    for (uint64_t step : {1, 3}) {
      harness.Advance(absl::Seconds(2));
      if (!reported) host.Report(Key(kJob, 1, 0), step, step + 1);
    }
    harness.Advance(absl::Seconds(1));
    host.Disconnect();
    harness.now += absl::Seconds(5);
    harness.Restart();
    host.Attach();
    host.Kill(Key(kJob, 1, 1), 9);
    if (reported) {
      RankReportsReceived late{host.session, {}};
      v1::RankReport& report = *late.reports.add_reports();
      *report.mutable_key() = Key(kJob, 1, 0);
      report.set_phase("train");
      report.set_last_step(4);
      report.set_phase_s(2);
      report.set_age_s(4);
      harness.Handle(std::move(late));
    }
    host.Apply(/*start=*/false);

    EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().lost_s(), 8) << "reported late: " << reported;
    EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().detect_s(), 12) << "reported late: " << reported;
  }
}

// Rank 1 is killed. Either rank 0 names the checkpoint of step 4 afterwards, or the checkpoint was granted before, and
// the next group names it.
TEST(CoreGoodput, StepsThatAreSavedUntilTheGroupHasEnded_AreNotLost) {
  for (bool granted : {false, true}) {
    Harness harness;
    harness.Submit(MakeSpec(2), kJob);
    FakeHost host(harness, "w1", 2, 11);
    host.Attach();
    BringToRunning(harness, host, kJob);
    harness.Advance(absl::Seconds(4));
    host.Report(Key(kJob, 1, 0), 1, 4);
    if (granted) host.ReadySave(Key(kJob, 1, 0), 4, "a");
    host.Kill(Key(kJob, 1, 1), 9);
    ASSERT_EQ(harness.StateOf(kJob), v1::JOB_STATE_RECOVERING);
    if (!granted) host.Save(Key(kJob, 1, 0), 4);
    host.Apply(/*start=*/false);

    ASSERT_EQ(harness.Get(kJob).generation(), 2u);
    EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().lost_s(), 0) << "granted: " << granted;
    EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().train_s(), 8) << "granted: " << granted;
  }
}

// After 257 reported steps, the coordinator removes every second mark of a step.
TEST(CoreGoodput, NewestStep_CountsAsSaved_AfterMarksOfStepsWereRemoved) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_train()->set_steps(1'000);
  harness.Submit(spec, kJob);
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  BringToRunning(harness, host, kJob);
  for (uint64_t step = 1; step <= 257; ++step) {
    harness.Advance(absl::Milliseconds(10));
    host.Report(Key(kJob, 1, 0), step, step);
  }

  host.Save(Key(kJob, 1, 0), 257);
  host.Kill(Key(kJob, 1, 1), 9);
  host.Apply(/*start=*/false);

  ASSERT_EQ(harness.Get(kJob).generation(), 2u);
  EXPECT_DOUBLE_EQ(harness.Get(kJob).goodput().lost_s(), 0);
}

}  // namespace
}  // namespace trainyard
