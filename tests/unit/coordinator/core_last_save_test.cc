// The save after a job's last step: it may fail, be retried and be given up. With the production core on a manual
// clock.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/coordinator/saving_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CoreLastSave, ThatFails_IsReportedOncePerError_AndTheJobSucceedsWhenItIsMade) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  for (int i = 0; i < 5; ++i) one.host.LastSaveFails(Key(kJob, 1, 0), 10, "/runs/x: No space left on device");

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_RUNNING);
  const std::string reason = "the last save failed and is tried again: rank 0 on w1: /runs/x: No space left on device";
  EXPECT_EQ(one.Get().reason(), reason);
  std::vector<std::string> decisions = one.harness.Decisions(kJob);
  EXPECT_EQ(std::count(decisions.begin(), decisions.end(), absl::StrCat("checkpoint: ", reason)), 1);
  EXPECT_THAT(decisions, Not(Contains(HasSubstr("training continues"))));

  one.host.Finish(Key(kJob, 1, 0), 10);
  one.host.Finish(Key(kJob, 1, 1), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(one.Get().reason(), "all 10 steps are made");
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("checkpoint: the last save has succeeded after all"));
}

TEST(CoreLastSave, ThatIsGivenUp_FailsTheJob_NamesTheDisk_AndIsNotRestarted) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 5);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  one.host.Finish(Key(kJob, 1, 0), 10, false, "/runs/x: No space left on device");
  one.host.Finish(Key(kJob, 1, 1), 10);
  one.host.Apply();

  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(
      one.Get().reason(),
      "rank 0 on w1 could not save step 10, the last one: /runs/x: No space left on device; the newest checkpoint "
      "is of step 5");
  EXPECT_EQ(one.Get().generation(), 1u);
}

TEST(CoreLastSave, ThatIsGivenUp_LeavesACancelledJobCancelled_AndAPausedOnePaused) {
  for (bool pause : {false, true}) {
    SavingHost one;
    BringToRunning(one.harness, one.host, kJob);
    one.host.Save(Key(kJob, 1, 0), 5);
    one.host.Report(Key(kJob, 1, 0), 1, 10);
    one.host.LastSaveFails(Key(kJob, 1, 0), 10, "No space left on device");
    pause ? one.harness.Pause(kJob) : one.harness.Cancel(kJob);
    one.host.Finish(Key(kJob, 1, 0), 10, false, "No space left on device");
    one.host.Finish(Key(kJob, 1, 1), 10);
    one.host.Apply();

    EXPECT_EQ(one.Get().state(), pause ? v1::JOB_STATE_PAUSED : v1::JOB_STATE_CANCELLED) << one.Get().reason();
    EXPECT_EQ(one.Get().reason(), pause ? "paused: night" : "cancelled: enough");
  }
}

// The trainers have the only copy of the state, so a pause does not kill them while a user frees space on the disk.
TEST(CoreLastSave, ThatIsRetried_IsWaitedForByAPause_ButNotByACancel) {
  for (bool pause : {true, false}) {
    SavingHost one;
    BringToRunning(one.harness, one.host, kJob);
    one.host.Report(Key(kJob, 1, 0), 1, 10);
    one.host.LastSaveFails(Key(kJob, 1, 0), 10, "No space left on device");
    pause ? one.harness.Pause(kJob) : one.harness.Cancel(kJob);
    one.RestartCoordinator();
    one.harness.Advance(pause ? absl::Minutes(35) : absl::Minutes(1));

    EXPECT_EQ(one.host.desired().trainers_size(), pause ? 2 : 0);
  }
}

// The trainers have exited successfully before the coordinator recorded the save.
TEST(CoreLastSave, ThatWasNotRecorded_IsMadeByTheNextGroup_AndIsNoSuccessBefore) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  one.host.ReadySave(Key(kJob, 1, 0), 10, "a");
  for (uint32_t rank = 0; rank < 2; ++rank) one.host.FinishOnly(Key(kJob, 1, rank), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_PLACED) << one.Get().reason();
  EXPECT_EQ(one.Get().restarts(), 1u);
  EXPECT_THAT(
      one.harness.Decisions(kJob),
      Contains(HasSubstr("rank 0 on w1 exited before its last checkpoint, which is complete, was renamed to its "
                         "final name")));

  // The next group renames the save to its final name and has nothing else to do.
  one.host.Apply();
  one.host.Restored(Key(kJob, 2, 0), 10, "a");
  BringToRunning(one.harness, one.host, kJob, 11);
  for (uint32_t rank = 0; rank < 2; ++rank) one.host.FinishOnly(Key(kJob, 2, rank), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_SUCCEEDED) << one.Get().reason();
  EXPECT_EQ(one.Get().checkpoints(0).step(), 10u);
}

TEST(CoreLastSave, OfAResumedRunThatWasComplete_IsShown_AndTheJobSucceeds) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  harness.Submit(MakeSpec(1), kJob, /*resume=*/true);
  host.Apply();
  host.Restored(Key(kJob, 1, 0), 10, "of-another-job");
  BringToRunning(harness, host, kJob, 11);
  host.FinishOnly(Key(kJob, 1, 0), 10);

  v1::Job job = harness.Get(kJob);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  ASSERT_EQ(job.checkpoints_size(), 1);
  EXPECT_EQ(job.checkpoints(0).step(), 10u);
  EXPECT_EQ(job.checkpoints(0).path(), "/runs/x/step-10");
}

}  // namespace
}  // namespace trainyard
