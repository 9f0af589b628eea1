// Grants and requested saves, with the production core on a manual clock.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/saving_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CoreSaves, ReadySave_IsGrantedToRank0_AndTheNextCoordinatorKnowsTheGrant) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.ReadySave(Key(kJob, 1, 0), 5, "a");

  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a"));
  EXPECT_THAT(one.Grants(1), IsEmpty());
  one.RestartCoordinator();
  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a"));
  one.host.ReadySave(Key(kJob, 1, 0), 5, "a");
  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a")) << "a repeated request";
  one.host.ReadySave(Key(kJob, 1, 0), 5, "b");
  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a", "5.g1 b refused"));
  EXPECT_THAT(one.harness.Decisions(kJob),
              Contains(HasSubstr("checkpoint: the checkpoint of step 5 that rank 0 on w1")));
  one.host.ReadySave(Key(kJob, 1, 1), 6, "c");
  EXPECT_THAT(one.Grants(), Not(Contains(HasSubstr("c")))) << "only rank 0 requests grants";

  one.host.Save(Key(kJob, 1, 0), 6);
  ASSERT_EQ(one.Get().checkpoints_size(), 1) << "the checkpoint of step 5 was not renamed, and is not the newest";
  EXPECT_FALSE(one.Get().checkpoints(0).unconfirmed());
}

TEST(CoreSaves, Grant_IsDurableBeforeItIsSent) {
  for (int commits = 1; commits < 12; ++commits) {
    SavingHost one;
    one.host.resends_facts = true;
    BringToRunning(one.harness, one.host, kJob);
    one.harness.commits_left = commits;
    one.harness.commit_entries = 1;
    one.host.ReadySave(Key(kJob, 1, 0), 5, "a");
    const bool granted = !one.Grants().empty();
    one.host.Disconnect();
    one.harness.commit_entries = Store::kEntriesMax;
    one.harness.Restart();
    if (granted) {
      one.host.resends_facts = false;  // only the store can repeat the grant
      one.host.Attach();
      EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a")) << "the coordinator crashed at commit " << commits;
      return;
    }
    one.host.Attach();
    EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a"))
        << "the coordinator crashed at commit " << commits << ", and the daemon has repeated the fact";
  }
  FAIL() << "the grant was never sent";
}

TEST(CoreSaves, RecordedSave_RemovesItsGrant_AndASaveWithOtherContentsIsNotRecorded) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.ReadySave(Key(kJob, 1, 0), 5, "hash-5-1");
  EXPECT_TRUE(one.Get().checkpoints(0).unconfirmed());
  one.host.Save(Key(kJob, 1, 0), 5);
  one.RestartCoordinator();  // removing a grant publishes no desired state by itself
  EXPECT_THAT(one.Grants(), IsEmpty());
  ASSERT_EQ(one.Get().checkpoints_size(), 1);
  EXPECT_FALSE(one.Get().checkpoints(0).unconfirmed());
  one.host.ReadySave(Key(kJob, 1, 0), 5, "hash-5-1");
  EXPECT_THAT(one.Grants(), IsEmpty()) << "the daemon repeats the fact, which adds no grant";

  one.host.ReadySave(Key(kJob, 1, 0), 7, "other");
  one.host.Save(Key(kJob, 1, 0), 7);
  ASSERT_EQ(one.Get().checkpoints_size(), 2);
  EXPECT_TRUE(one.Get().checkpoints(1).unconfirmed()) << "only the granted save is kept";
  EXPECT_THAT(one.harness.Decisions(kJob),
              Contains(HasSubstr("not recorded: another checkpoint of that step was granted")));
}

// A daemon whose disk is full keeps its facts in memory. If it is killed, the next daemon sends those of the older file
// again. The record of the checkpoint was dropped meanwhile.
TEST(CoreSaves, ReportsOfASaveThatWasReplacedLongAgo_ChangeNothingIfTheyAreRepeated) {
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_checkpoint()->set_keep(1);
  SavingHost one(spec);
  BringToRunning(one.harness, one.host, kJob);
  for (uint64_t step : {1u, 2u}) {
    one.host.ReadySave(Key(kJob, 1, 0), step, absl::StrCat("hash-", step, "-1"));
    one.host.Save(Key(kJob, 1, 0), step);
  }
  ASSERT_EQ(one.Get().checkpoints_size(), 1) << "step 1 is not recorded any more";
  const std::vector<std::string> decisions = one.harness.Decisions(kJob);

  one.host.ReadySave(Key(kJob, 1, 0), 1, "hash-1-1");
  one.host.Save(Key(kJob, 1, 0), 1);

  EXPECT_EQ(one.harness.Decisions(kJob), decisions);
  EXPECT_EQ(one.Get().checkpoints(0).step(), 2u);
  one.RestartCoordinator();
  EXPECT_THAT(one.Grants(), IsEmpty());
}

TEST(CoreSaves, ReadySaveOfAFencedGeneration_ChangesNothing) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.Fail();
  one.host.ReadySave(Key(kJob, 1, 0), 5, "a");
  EXPECT_THAT(one.Grants(), IsEmpty());
  EXPECT_EQ(one.Get().checkpoints_size(), 0);
}

TEST(CoreSaves, GrantedSaveThatWasNotRenamed_IsOfferedToTheNextGeneration_AndRecordedIfThatGenerationResumesFromIt) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 3);
  one.host.ReadySave(Key(kJob, 1, 0), 5, "a");
  one.host.Kill(Key(kJob, 1, 1), 9);
  EXPECT_THAT(one.Get().reason(), HasSubstr("restarting from step 5"));
  one.host.Apply(/*start=*/false);

  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a"));
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 3u) << "a recorded save certainly has its final name";
  one.RestartCoordinator();
  EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g1 a"));
  one.host.Restored(Key(kJob, 2, 0), 5, "a");
  BringToRunning(one.harness, one.host, kJob, 6);
  EXPECT_THAT(one.Grants(), IsEmpty());
  v1::Job job = one.Get();
  ASSERT_EQ(job.checkpoints_size(), 2);
  EXPECT_EQ(job.checkpoints(1).manifest_hash(), "a");
  EXPECT_EQ(job.checkpoints(1).generation(), 1u);
  EXPECT_FALSE(job.checkpoints(1).unconfirmed());
  one.Fail();
  EXPECT_EQ(one.host.desired().trainers(0).restart_from().step(), 5u);
}

TEST(CoreSaves, UnusableGrant_IsReportedAndGivenUp) {
  for (bool from_start : {false, true}) {
    SavingHost one;
    BringToRunning(one.harness, one.host, kJob);
    if (!from_start) one.host.Save(Key(kJob, 1, 0), 3);
    one.host.ReadySave(Key(kJob, 1, 0), 5, "a");
    one.Fail();
    if (!from_start) one.host.Restored(Key(kJob, 2, 0), 3, "hash-3-1");
    BringToRunning(one.harness, one.host, kJob, from_start ? 1 : 4);

    EXPECT_THAT(one.Grants(), IsEmpty());
    EXPECT_THAT(
        one.harness.Decisions(kJob),
        Contains(HasSubstr(absl::StrCat("the checkpoint of step 5, granted to generation 1, could not be used; ",
                                        from_start ? "training starts from the beginning" : "restored from step 3"))));
    one.host.ReadySave(Key(kJob, 2, 0), 5, "b");
    EXPECT_THAT(one.Grants(), ::testing::ElementsAre("5.g2 b"))
        << "the same step is made again, and granted to the new generation";
  }
}

TEST(CoreSaves, SkippedCheckpoints_AreDecisionsWithAReason) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Save(Key(kJob, 1, 0), 3);
  one.host.Save(Key(kJob, 1, 0), 5);
  one.Fail();
  std::vector<std::string> passed_over = {"checkpoint of step 5 is damaged: rank 1 on w2: shard-00001.safetensors"};
  for (int i = 0; i < 20; ++i) passed_over.push_back(absl::StrCat("number ", i));

  one.host.Restored(Key(kJob, 2, 0), 3, "hash-3-1", passed_over);

  const std::vector<std::string> decisions = one.harness.Decisions(kJob);
  EXPECT_THAT(decisions, Contains("checkpoint: " + passed_over[0]));
  EXPECT_THAT(decisions, Contains("checkpoint: number 6"));
  EXPECT_THAT(decisions, Not(Contains("checkpoint: number 7"))) << "one fact causes a limited number of decisions";
}

TEST(CoreSaves, DeletedSave_IsNotOfferedAgain) {
  for (bool withdrawn : {false, true}) {
    SavingHost one;
    BringToRunning(one.harness, one.host, kJob);
    one.host.ReadySave(Key(kJob, 1, 0), 4, "a");
    one.host.ReadySave(Key(kJob, 1, 0), 6, "b");
    v1::Fact fact;
    fact.mutable_save_failed()->set_step(4);
    fact.mutable_save_failed()->set_withdrawn(withdrawn);
    fact.mutable_save_failed()->set_message("Input/output error");
    one.host.ReportFact(Key(kJob, 1, 0), std::move(fact));
    one.RestartCoordinator();  // removing a grant publishes no desired state by itself
    EXPECT_THAT(one.Grants(), ::testing::ElementsAre("6.g1 b"));
    EXPECT_THAT(one.harness.Decisions(kJob), Contains(HasSubstr(withdrawn ? "step 4 was removed before it was renamed"
                                                                          : "could not save step 4: Input/output")));
    one.host.SaveFails(Key(kJob, 1, 1), 6);
    EXPECT_THAT(one.Grants(), ::testing::ElementsAre("6.g1 b")) << "only rank 0 knows the state of the whole save";
  }
}

TEST(CoreSaves, JobThatEndsWithAnUnusedGrant_ReportsIt) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 10);
  one.host.ReadySave(Key(kJob, 1, 0), 10, "a");
  one.harness.Cancel(kJob);
  one.host.FinishOnly(Key(kJob, 1, 0), 10);
  one.host.FinishOnly(Key(kJob, 1, 1), 10);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(one.harness.Decisions(kJob), Contains(HasSubstr("no rank confirmed the rename")));
  one.host.ReadySave(Key(kJob, 1, 0), 10, "b");
  EXPECT_EQ(one.Get().checkpoints_size(), 1) << "the job has ended";
}

TEST(CoreSaves, SaveRequest_ReachesRank0_AndIsRepeatedToLaterGenerationsUntilASaveIsMade) {
  SavingHost one;
  EXPECT_EQ(one.harness.RequestSave(kJob).status.code(), absl::StatusCode::kFailedPrecondition)
      << "the job's group is still forming";
  EXPECT_EQ(one.harness.RequestSave("nosuchjob").status.code(), absl::StatusCode::kNotFound);
  BringToRunning(one.harness, one.host, kJob);
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  ASSERT_TRUE(one.harness.RequestSave(kJob).status.ok());
  EXPECT_EQ(one.host.desired().trainers(0).save_requests(), 1u);
  EXPECT_EQ(one.host.desired().trainers(1).save_requests(), 0u);
  ASSERT_TRUE(one.harness.RequestSave(kJob).status.ok());
  EXPECT_EQ(one.host.desired().trainers(0).save_requests(), 2u);
  EXPECT_THAT(one.harness.Decisions(kJob), Contains("operator: a save was requested: before the night"));
  one.host.Save(Key(kJob, 1, 0), 3);
  one.RestartCoordinator();
  EXPECT_EQ(one.host.desired().trainers(0).save_requests(), 2u);

  one.Fail();
  EXPECT_EQ(one.host.desired().trainers(0).save_requests(), 1u) << "the saved step was older than the request";
  one.host.Restored(Key(kJob, 2, 0), 3, "hash-3-1");
  BringToRunning(one.harness, one.host, kJob, 4);
  one.host.Save(Key(kJob, 2, 0), 4);
  one.Fail();
  EXPECT_EQ(one.host.desired().trainers(0).save_requests(), 0u)
      << "a save of the next group answers the request, even if its step is earlier";
}

TEST(CoreSaves, CancelWithASave_StopsLikeAPause_AndEndsCancelled) {
  SavingHost one;
  EXPECT_EQ(one.harness.CancelSaved(kJob).status.code(), absl::StatusCode::kFailedPrecondition)
      << "the job's group is still forming";
  BringToRunning(one.harness, one.host, kJob);
  ASSERT_TRUE(one.harness.CancelSaved(kJob).status.ok());
  EXPECT_TRUE(one.host.desired().trainers(0).stop_needs_save());
  EXPECT_EQ(one.harness.Pause(kJob).status.code(), absl::StatusCode::kFailedPrecondition);
  one.RestartCoordinator();
  EXPECT_TRUE(one.host.desired().trainers(0).stop());
  EXPECT_TRUE(one.host.desired().trainers(0).stop_needs_save()) << "the next coordinator also saves before it cancels";
  one.host.Save(Key(kJob, 1, 0), 5);
  one.Leave(5);
  EXPECT_EQ(one.Get().state(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(one.Get().reason(), "cancelled, with a save: enough");
  EXPECT_TRUE(one.harness.CancelSaved(kJob).status.ok()) << "cancelling an ended job is no error";
}

TEST(CoreSaves, CancelWithASave_IsNotCarriedOut_IfTheSaveOrTheGroupFails) {
  for (bool rank_dies : {false, true}) {
    SavingHost one;
    BringToRunning(one.harness, one.host, kJob);
    one.harness.CancelSaved(kJob);
    if (rank_dies) {
      one.host.Kill(Key(kJob, 1, 1), 9);
    } else {
      one.host.SaveFails(Key(kJob, 1, 0), 5, /*stop_request=*/1);
    }
    EXPECT_EQ(one.Get().state(), rank_dies ? v1::JOB_STATE_RECOVERING : v1::JOB_STATE_RUNNING);
    EXPECT_THAT(one.harness.Decisions(kJob),
                Contains(HasSubstr(absl::StrCat("the job was not cancelled: ",
                                                rank_dies ? "rank 1 on w1 was killed" : "step 5 could not be saved"))));
  }
}

TEST(CoreSaves, CancelWithASave_MayBecomeAPlainCancel_AndAPauseMayBecomeACancel) {
  SavingHost plain;
  BringToRunning(plain.harness, plain.host, kJob);
  plain.harness.CancelSaved(kJob);
  plain.harness.Cancel(kJob);
  EXPECT_FALSE(plain.host.desired().trainers(0).stop_needs_save());
  EXPECT_EQ(plain.host.desired().trainers(0).stop_request(), 2u);
  plain.Leave(5);
  EXPECT_EQ(plain.Get().state(), v1::JOB_STATE_CANCELLED);

  SavingHost paused;
  BringToRunning(paused.harness, paused.host, kJob);
  paused.harness.Pause(kJob);
  ASSERT_TRUE(paused.harness.CancelSaved(kJob).status.ok());
  paused.Leave(5);
  EXPECT_EQ(paused.Get().state(), v1::JOB_STATE_CANCELLED);
}

// The save of step 5 is reported while step 10 is made. Then the group fails, and steps 6 to 9 are lost.
TEST(CoreSaves, BackgroundSave_DoesNotContainLaterSteps) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  one.harness.Advance(absl::Seconds(2));
  one.host.Report(Key(kJob, 1, 0), 1, 5);
  one.harness.Advance(absl::Seconds(4));
  one.host.Report(Key(kJob, 1, 0), 6, 9);
  v1::Fact fact;
  fact.mutable_saved()->set_step(5);
  fact.mutable_saved()->set_path("/runs/x/step-5");
  fact.mutable_saved()->set_manifest_hash("a");
  fact.mutable_saved()->set_seconds(20);
  fact.mutable_saved()->set_stall_s(0.1);
  one.host.ReportFact(Key(kJob, 1, 0), std::move(fact));
  one.host.Kill(Key(kJob, 1, 1), 9);
  one.host.Apply(/*start=*/false);

  EXPECT_NEAR(one.Get().goodput().lost_s(), 2 * 4, 0.5);
  EXPECT_NEAR(one.Get().goodput().train_s(), 2 * 2, 0.5);
}

TEST(CoreSaves, ChangesSinceTheCheckpoint_AreReportedAsOneDecisionPerKey) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  v1::Fact fact;
  fact.mutable_restored()->set_step(5);
  fact.mutable_restored()->set_path("/runs/x/step-5");
  for (const char* key : {"train.optimizer.lr", "resources.ranks"}) {
    v1::ResolvedKey& change = *fact.mutable_restored()->add_changes();
    change.set_key(key);
    change.set_value("1 -> 2");
  }
  one.host.ReportFact(Key(kJob, 1, 0), fact);
  one.host.ReportFact(Key(kJob, 1, 0), fact);

  std::vector<std::string> decisions = one.harness.Decisions(kJob);
  EXPECT_EQ(std::count(decisions.begin(), decisions.end(),
                       "resume: resumes from step 5 with a changed train.optimizer.lr: 1 -> 2"),
            1);
  EXPECT_THAT(decisions, Contains("resume: resumes from step 5 with a changed resources.ranks: 1 -> 2"));
}

TEST(CoreSaves, AllowedFreshStart_IsSentToTheTrainers) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  SubmitJob submit{CallId(9'000), {}, JobId("fallback0001")};
  *submit.request.mutable_spec() = MakeSpec(1);
  submit.request.set_job_id(kJob);
  submit.request.set_default_run_root("/runs");
  submit.request.set_resume(true);
  submit.request.set_allow_fresh_start(true);
  harness.Handle(submit);
  ASSERT_EQ(host.desired().trainers_size(), 1);
  EXPECT_TRUE(host.desired().trainers(0).allow_fresh_start());
  EXPECT_TRUE(harness.Get(kJob).allow_fresh_start());
}

// The grace of a stop is 10 s, or three times the longest step, evaluation or save if that is more. Of a background
// save, only the time for which it stops training counts.
TEST(CoreSaves, LongBackgroundSave_DoesNotExtendTheGrace) {
  SavingHost one;
  BringToRunning(one.harness, one.host, kJob);
  v1::Fact fact;
  fact.mutable_saved()->set_step(5);
  fact.mutable_saved()->set_seconds(1'000);
  fact.mutable_saved()->set_stall_s(0.1);
  one.host.ReportFact(Key(kJob, 1, 0), std::move(fact));
  one.harness.Cancel(kJob);
  one.harness.Advance(absl::Seconds(12));
  EXPECT_EQ(one.host.desired().trainers_size(), 0) << "the ranks did not stop in time";
}

}  // namespace
}  // namespace trainyard
