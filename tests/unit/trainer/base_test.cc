// The parts of the trainer that use neither torch nor gRPC.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "tests/unit/checkpoint/testing.h"
#include "worker/collectives/agreement.h"
#include "worker/link/outbox.h"
#include "worker/link/phase_clock.h"
#include "worker/trainer/metrics.h"
#include "worker/trainer/options.h"
#include "worker/trainer/run_folder.h"
#include "worker/trainer/step_log.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(AgreementTest, Loss_IsTheMeanOverAllTokens) {
  Agreement agreement;

  AgreedStep agreed = agreement.Read({.tokens = 300, .loss_sum = 900});

  EXPECT_EQ(agreed.loss, 3);
  EXPECT_EQ(agreed.tokens, 300u);
  EXPECT_FALSE(agreed.stop);
}

TEST(AgreementTest, Request_ActsOnceEvenIfSeenAgain) {
  Agreement agreement;

  EXPECT_FALSE(agreement.Read({.tokens = 1}).stop);
  EXPECT_TRUE(agreement.Read({.tokens = 1, .request = 4}).stop);
  EXPECT_FALSE(agreement.Read({.tokens = 1, .request = 4}).stop);
  EXPECT_TRUE(agreement.Read({.tokens = 1, .request = 5}).is_requested);
}

TEST(AgreementTest, RequestThatNeedsItsSave_IsReportedUnlessARankMustLeaveAnyway) {
  Agreement agreement;

  EXPECT_EQ(agreement.Read({.tokens = 1, .request = 4, .needs_save = 1}).request_needing_save, 4u);
  EXPECT_EQ(agreement.Read({.tokens = 1, .request = 4, .needs_save = 1}).request_needing_save, 0u)
      << "request 4 was seen before";
  EXPECT_EQ(agreement.Read({.tokens = 1, .request = 5, .notice = 1, .needs_save = 1}).request_needing_save, 0u);
  EXPECT_EQ(agreement.Read({.tokens = 1, .request = 6}).request_needing_save, 0u);
}

TEST(AgreementTest, Terms_SurviveWritingAndReading) {
  const AgreementTerms terms{.tokens = 1,
                             .loss_sum = 2,
                             .request = 3,
                             .notice = 4,
                             .needs_save = 5,
                             .saves_ended = 6,
                             .saves_failed = 7,
                             .give_up = 8,
                             .save_request = 9,
                             .commits_failed = 10,
                             .model_wait_s = 11};

  const auto values = terms.ToArray();

  EXPECT_EQ(AgreementTerms::FromArray(values.data()).ToArray(), values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<double>(i + 1));
}

TEST(AgreementTest, Notice_OfAnyRankStopsAll) {
  Agreement agreement;

  AgreedStep agreed = agreement.Read({.tokens = 1, .notice = 1});

  EXPECT_TRUE(agreed.stop);
  EXPECT_FALSE(agreed.is_requested);
}

TEST(MetricsTest, Lines_KeepFullPrecisionAndStayJson) {
  StepRecord step{.step = 17,
                  .loss = 0.1 + 0.2,
                  .tokens = 1024,
                  .step_s = 0.5,
                  .grad_norm = std::nan(""),
                  .gradient_reductions = 3};

  std::string line = MetricsLine(step);

  EXPECT_THAT(line, HasSubstr("\"loss\":0.30000000000000004,\"tokens\":1024,\"tokens_per_s\":2048,"));
  EXPECT_THAT(line, HasSubstr("\"grad_norm\":null"));
  EXPECT_THAT(line, HasSubstr(",\"gradient_reductions\":3,"));
  EXPECT_THAT(line, testing::Not(HasSubstr("save_stall_s")));
  step.save_stall_s = 0.25;
  EXPECT_THAT(MetricsLine(step), HasSubstr(",\"save_stall_s\":0.25}"));
  EXPECT_EQ(MetricsLine(EvalRecord{.step = 5, .loss = 2.5, .tokens = 64, .seconds = 1}),
            "{\"event\":\"eval\",\"step\":5,\"loss\":2.5,\"tokens\":64,\"seconds\":1}\n");
}

TEST(MetricsTest, Open_CutsAfterTheRestartStepAndAppends) {
  TemporaryFolder folder;
  std::string path = folder / kMetricsName;
  std::string kept = MetricsLine(StepRecord{.step = 4}) + MetricsLine(EvalRecord{.step = 4});
  ASSERT_TRUE(WriteFileAtomically(path, kept + MetricsLine(StepRecord{.step = 5}) + "{\"event\":\"step\",\"st").ok());

  {
    auto metrics = MetricsFile::Open(path, 4);
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    ASSERT_TRUE((*metrics)->Append(MetricsLine(StepRecord{.step = 5, .loss = 7})).ok());
  }

  EXPECT_EQ(*ReadFile(path), kept + MetricsLine(StepRecord{.step = 5, .loss = 7}));
}

// The file is longer than a block, so that the content read from the end is assembled from several reads.
TEST(MetricsTest, Open_FindsTheCutFromTheEnd_WhateverFollowsIt) {
  TemporaryFolder folder;
  const std::string path = folder / kMetricsName;
  std::string kept, later;
  for (uint64_t step = 1; step <= 2000; ++step) {
    (step <= 700 ? kept : later) += MetricsLine(StepRecord{.step = step, .loss = 1.0 / static_cast<double>(step)});
  }
  const std::string junk = absl::StrCat(std::string(300'000, 'x'), "\n{\"step\":\"7\"}\n{\"event\":\"st");
  struct Case {
    std::string text;
    uint64_t last_step;
    std::string expected;
  };
  for (const Case& c : {Case{kept + later, 700, kept}, Case{kept + later, 0, ""}, Case{kept, 700, kept},
                        Case{kept + junk, 700, kept}, Case{junk, 700, ""}, Case{"", 5, ""}}) {
    ASSERT_TRUE(WriteFileAtomically(path, c.text).ok());

    auto metrics = MetricsFile::Open(path, c.last_step);

    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_TRUE(*ReadFile(path) == c.expected) << c.text.size() << " bytes, up to step " << c.last_step;
  }
}

TEST(MetricsTest, PathThatIsNotAFile_IsRefusedImmediately) {
  TemporaryFolder folder;
  const std::string fifo = folder / "fifo", in_place = folder / "folder";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_TRUE(MakeFolders(in_place).ok());

  EXPECT_THAT(std::string(MetricsFile::Open(fifo, 1).status().message()), HasSubstr("is a FIFO, but a file"));
  EXPECT_THAT(std::string(MetricsFile::Open(in_place, 1).status().message()), HasSubstr("is a folder, but a file"));
  EXPECT_THAT(std::string(MetricsFile::Open("/dev/null", 1).status().message()), HasSubstr("is a device"));
}

TEST(OutboxTest, Facts_AreStoredUntilAcknowledgedAndSentAgainAfterRewind) {
  Outbox outbox;
  for (uint64_t step : {1, 2, 3}) outbox.AddFact(SaveFailedFact{.step = step}, 0);
  EXPECT_EQ(outbox.TakeFact()->sequence, 1u);
  EXPECT_EQ(outbox.TakeFact()->sequence, 2u);
  outbox.Acknowledge(1);

  outbox.Rewind();

  EXPECT_EQ(outbox.acknowledged(), 1u);
  EXPECT_EQ(outbox.TakeFact()->sequence, 2u);
  EXPECT_EQ(outbox.TakeFact()->sequence, 3u);
  EXPECT_FALSE(outbox.TakeFact().has_value());
  EXPECT_EQ(outbox.AddFact(SaveFailedFact{}, 0), 4u);
}

TEST(OutboxTest, Reports_ComeInOrder_AndABatchEndsAfterAnEvaluation) {
  Outbox outbox;
  outbox.AddStep({.step = 1});
  outbox.AddStep({.step = 2});
  outbox.AddEval({.step = 2});
  outbox.AddStep({.step = 3});

  ReportBatch first = outbox.TakeReports(), second = outbox.TakeReports();

  EXPECT_THAT(first.steps, SizeIs(2));
  EXPECT_THAT(first.evals, SizeIs(1));
  ASSERT_THAT(second.steps, SizeIs(1));
  EXPECT_EQ(second.steps[0].step, 3u);
  EXPECT_FALSE(outbox.has_reports());
}

TEST(OutboxTest, Reports_BeyondTheLimit_DropTheOldestAndCountUnsentOnes) {
  Outbox outbox;
  for (uint64_t step = 1; step <= limits::kTrainerReports + 10; ++step) {
    outbox.AddStep({.step = step});
    if (step == 4) outbox.TakeReports();
  }

  ReportBatch batch = outbox.TakeReports();
  EXPECT_EQ(batch.dropped_steps, 6u);
  EXPECT_EQ(batch.steps.front().step, 11u);
  EXPECT_THAT(batch.steps, SizeIs(limits::kReportsPerMessage));

  outbox.Rewind();
  EXPECT_EQ(outbox.TakeReports().steps.front().step, 11u);
}

absl::StatusOr<std::unique_ptr<RunFolder>> AcquireAndClaim(const std::string& folder, const std::string& job,
                                                           uint64_t generation) {
  auto held =
      RunFolder::Acquire({.folder = folder, .job_id = job, .generation = generation, .wait = absl::ZeroDuration()});
  absl::Status claimed = held.ok() ? (*held)->Claim() : absl::OkStatus();
  EXPECT_TRUE(claimed.ok()) << claimed;
  return held;
}

TEST(RunFolderTest, EmptyFolder_MayHoldThePrivateFolderAndTheLock) {
  TemporaryFolder folder;
  ASSERT_TRUE(MakeFolders(folder / ".trainyard/job").ok());
  auto held = AcquireAndClaim(folder.path(), "a", 1);
  ASSERT_TRUE(held.ok()) << held.status();

  EXPECT_TRUE(CheckEmpty(folder.path()).ok());
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(WriteFileAtomically(folder / name, "").ok());
  EXPECT_THAT(std::string(CheckEmpty(folder.path()).message()), HasSubstr("it holds a, b, c and 1 more"));
}

TEST(RunFolderTest, FolderHeldByAnotherJob_IsRefused_AndTheMessageNamesTheProcess) {
  TemporaryFolder folder;
  auto held = AcquireAndClaim(folder.path(), "a", 1);

  absl::Status status = AcquireAndClaim(folder.path(), "b", 7).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("process ", getpid())));
  EXPECT_TRUE((*held)->CheckFence().ok());
}

TEST(RunFolderTest, NextGeneration_TakesOverWithoutWaitingAndItsPredecessorDetectsTheFence) {
  TemporaryFolder folder;
  auto first = AcquireAndClaim(folder.path(), "a", 1);
  ASSERT_TRUE(first.ok()) << first.status();

  auto second = AcquireAndClaim(folder.path(), "a", 2);

  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE((*second)->CheckFence().ok());
  EXPECT_TRUE(absl::IsAborted((*first)->CheckFence()));
  EXPECT_THAT(std::string((*first)->CheckFence().message()), HasSubstr("belongs to generation 2"));
  // The second generation holds the lock now, so the end of the first one releases nothing.
  first->reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(AcquireAndClaim(folder.path(), "b", 1).status()));
  second->reset();
  EXPECT_TRUE(AcquireAndClaim(folder.path(), "b", 1).ok());
}

TEST(RunFolderTest, JobThatDoesNotClaimTheFolder_LeavesItUnchanged) {
  TemporaryFolder folder;
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "a", 1).ok());
  const std::string fence = *ReadFile(folder / ".fence");
  const RunFolder::Options other{.folder = folder.path(), .job_id = "b", .generation = 1, .wait = {}};
  const RunFolder::Options made{.folder = folder / "new/run", .job_id = "b", .generation = 1, .wait = {}};

  EXPECT_TRUE(RunFolder::Acquire(other).ok());
  EXPECT_TRUE(RunFolder::Acquire(made).ok());

  EXPECT_EQ(*ReadFile(folder / ".fence"), fence);
  EXPECT_FALSE(FileExists(folder / ".claim"));
  EXPECT_FALSE(FileExists(folder / "new"));
  EXPECT_TRUE(
      RunFolder::Acquire({.folder = folder.path(), .job_id = "a", .generation = 2, .wait = {}, .owned_before = true})
          .ok());
}

TEST(RunFolderTest, OwningJob_ReclaimsTheFolderFromAJobThatIsStillChecked) {
  TemporaryFolder folder;
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "a", 1).ok());
  auto checked = RunFolder::Acquire({.folder = folder.path(), .job_id = "b", .generation = 1, .wait = {}});
  ASSERT_TRUE(checked.ok()) << checked.status();

  auto reclaimed = AcquireAndClaim(folder.path(), "a", 2);

  ASSERT_TRUE(reclaimed.ok()) << reclaimed.status();
  EXPECT_THAT(std::string((*checked)->Claim().message()), HasSubstr("was claimed again by job a"));
  checked->reset();
  EXPECT_TRUE((*reclaimed)->CheckFence().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AcquireAndClaim(folder.path(), "c", 1).status())) << "job a has the lock";
}

TEST(RunFolderTest, NewerGeneration_FencesOffOneThatHasNotClaimedYet) {
  TemporaryFolder folder;
  auto first = RunFolder::Acquire({.folder = folder.path(), .job_id = "a", .generation = 1, .wait = {}});
  ASSERT_TRUE(first.ok()) << first.status();

  auto second = RunFolder::Acquire({.folder = folder.path(), .job_id = "a", .generation = 2, .wait = {}});

  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(absl::IsAborted((*first)->Claim())) << (*first)->Claim();
  first->reset();
  EXPECT_EQ((*second)->Claim(), absl::OkStatus());
}

TEST(RunFolderTest, RemovedFolder_IsRecreatedUnlessAnotherJobHasIt) {
  TemporaryFolder folder;
  const std::string path = folder / "run";
  auto held = AcquireAndClaim(path, "a", 1);
  std::filesystem::remove_all(path);

  EXPECT_EQ((*held)->RecreateIfRemoved(), absl::OkStatus());
  EXPECT_TRUE((*held)->CheckFence().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(AcquireAndClaim(path, "b", 1).status())) << "the new folder is locked, too";

  std::filesystem::remove_all(path);
  auto other = AcquireAndClaim(path, "b", 1);
  EXPECT_TRUE(absl::IsAborted((*held)->RecreateIfRemoved()));
}

TEST(RunFolderTest, FolderThatAnotherJobHasClaimed_RemainsWithThatJob) {
  TemporaryFolder folder;
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "a", 1).ok());
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "b", 1).ok());
  const std::string fence = *ReadFile(folder / ".fence");

  auto again = RunFolder::Acquire(
      {.folder = folder.path(), .job_id = "a", .generation = 2, .wait = absl::ZeroDuration(), .owned_before = true});

  EXPECT_TRUE(absl::IsNotFound(again.status())) << again.status();
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("was claimed by job b"));
  EXPECT_EQ(*ReadFile(folder / ".fence"), fence);
  EXPECT_TRUE(AcquireAndClaim(folder.path(), "a", 2).ok()) << "without owned_before, the job claims the folder anew";
}

TEST(RunFolderTest, Settled_IsTheGenerationThatMarkedIt_NotTheLastOwner) {
  TemporaryFolder folder;
  auto first = AcquireAndClaim(folder.path(), "a", 1);
  EXPECT_EQ((*first)->settled(), std::nullopt);
  ASSERT_TRUE((*first)->MarkSettled().ok());

  // Generation 2 ends before it settles.
  EXPECT_EQ((*AcquireAndClaim(folder.path(), "a", 2))->settled(), (JobGeneration{"a", 1}));
  auto third = AcquireAndClaim(folder.path(), "a", 3);

  EXPECT_EQ((*third)->settled(), (JobGeneration{"a", 1}));
  EXPECT_TRUE(absl::IsAborted((*first)->MarkSettled()));
  EXPECT_TRUE(CheckEmpty(folder.path()).ok());
}

TEST(RunFolderTest, Settled_InAFolderOfAnEarlierVersion_IsItsFence) {
  TemporaryFolder folder;
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "a", 4).ok());

  EXPECT_EQ((*AcquireAndClaim(folder.path(), "b", 1))->settled(), (JobGeneration{"a", 4}));
}

TEST(RunFolderTest, EarlierGeneration_ThatArrivesLate_IsAborted) {
  TemporaryFolder folder;
  ASSERT_TRUE(AcquireAndClaim(folder.path(), "a", 3).ok());

  absl::Status status = AcquireAndClaim(folder.path(), "a", 2).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(EndedLaterGeneration(status), 3u);

  auto held = AcquireAndClaim(folder.path(), "a", 4);
  status = AcquireAndClaim(folder.path(), "a", 2).status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(EndedLaterGeneration(status), 0u) << "the later generation holds the lock";
  EXPECT_EQ(EndedLaterGeneration((*held)->CheckFence()), 0u);
}

TEST(RunFolderTest, ProcessThatIsCutOff_DetectsTheNewFenceAndBlocksNoOther) {
  TemporaryFolder folder;
  int to_child[2], from_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(from_child), 0);
  pid_t child = fork();
  if (child == 0) {
    auto held = AcquireAndClaim(folder.path(), "a", 1);
    char byte = held.ok() && (*held)->CheckFence().ok() ? 'y' : 'n';
    (void)!write(from_child[1], &byte, 1);
    (void)!read(to_child[0], &byte, 1);
    _exit(held.ok() && absl::IsAborted((*held)->CheckFence()) ? 3 : 1);
  }
  char byte = 0;
  ASSERT_EQ(read(from_child[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');

  auto second = AcquireAndClaim(folder.path(), "a", 2);
  EXPECT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(write(to_child[1], &byte, 1), 1);

  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  for (int fd : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(fd);
}

TEST(RunFolderTest, Token_IsFoundInTheSameFolderOnlyAndIsRemoved) {
  TemporaryFolder folder, other;
  auto token = SharedFolderToken::Create(folder.path());
  ASSERT_TRUE(token.ok()) << token.status();

  EXPECT_TRUE(FindToken(folder.path(), (*token)->name(), "w2", absl::ZeroDuration()).ok());
  absl::Status status = FindToken(other.path(), (*token)->name(), "w2", absl::ZeroDuration());
  token->reset();

  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("host w2: checkpoint.dir ", other.path())));
  EXPECT_FALSE(FileExists(folder / ".trainyard"));
}

TEST(OptionsTest, CommandLines_AreParsedOrRefused) {
  auto parse = [](std::vector<const char*> arguments, TrainerOptions& options) {
    arguments.insert(arguments.begin(), "trainyard-trainer");
    int code = -1;
    return ParseOptions(static_cast<int>(arguments.size()), arguments.data(), options, code) ? 0
           : code == 0                                                                       ? 10
                                                                                             : code;
  };
  TrainerOptions train, sample, other;

  EXPECT_EQ(parse({"--link", "/s", "--job", "j", "--generation", "3", "--rank", "1"}, train), 0);
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--tokens", "5", "--json"}, sample), 0);

  EXPECT_EQ(train.generation, 3u);
  EXPECT_EQ(sample.command, TrainerOptions::Command::kSample);
  EXPECT_EQ(sample.sample.tokens, 5);
  EXPECT_EQ(parse({}, other), 2);
  EXPECT_EQ(parse({"sample"}, other), 2);
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--tokens", "0"}, other), 2);
  for (const char* stream : {"--stream", "--no-stream"}) {
    TrainerOptions streamed;
    EXPECT_EQ(parse({"sample", "--checkpoint", "/c", stream}, streamed), 0);
    EXPECT_EQ(streamed.sample.stream, stream == std::string("--stream"));
  }
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--json", "--stream"}, other), 2);
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--no-stream", "--stream"}, other), 2);
  EXPECT_EQ(sample.sample.stream, std::nullopt);
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--top-p", "0"}, other), 2);
  EXPECT_EQ(parse({"sample", "--checkpoint", "/c", "--prompt", "a", "--prompts", "f"}, other), 2);
  EXPECT_EQ(parse({"--version"}, other), 10);
}

TEST(PhaseClockTest, ReturnsTheLongestOfEachEndedPhaseOnce) {
  using std::chrono::milliseconds;
  PhaseClock::Time now{};
  PhaseClock clock(now);
  auto enter = [&](Phase phase, int after_ms) { clock.Enter(phase, now += milliseconds(after_ms)); };

  enter(Phase::kJoining, 5000);
  enter(Phase::kFirstStep, 100);
  enter(Phase::kTrain, 700);
  enter(Phase::kTrain, 30);
  enter(Phase::kTrain, 50);
  enter(Phase::kSave, 20);
  enter(Phase::kTrain, 400);

  EXPECT_EQ(clock.phase(), Phase::kTrain);
  EXPECT_DOUBLE_EQ(clock.Seconds(now + milliseconds(250)), 0.25);
  EXPECT_EQ(clock.TakeLongest(),
            (std::map<Phase, double>{{Phase::kFirstStep, 0.7}, {Phase::kTrain, 0.05}, {Phase::kSave, 0.4}}));
  // The present phase is not reported before its end.
  EXPECT_TRUE(clock.TakeLongest().empty());
}

TEST(StepLog, LogsTheFirstAndTheLastStepAndOneEveryTenSeconds) {
  StepLog log(1000);
  std::vector<std::string> lines;
  for (uint64_t step = 1; step <= 1000; ++step) {
    const StepRecord record{.step = step, .loss = 2.5, .tokens = 1000, .step_s = 0.05};
    std::string line = log.Line(record, 0.05 * static_cast<double>(step));
    if (!line.empty()) lines.push_back(std::move(line));
  }

  EXPECT_EQ(lines.front(), "step 1 of 1000, loss 2.5000, 20000 tokens/s");
  EXPECT_EQ(lines.back(), "step 1000 of 1000, loss 2.5000, 20000 tokens/s");
  EXPECT_EQ(lines.size(), 6u) << "the first, four at intervals of 10 s, and the last";
}

TEST(StepLog, MarksStepsWhoseUpdateWasSkipped) {
  EXPECT_EQ(StepLog(9).Line({.step = 1, .loss = 2.5, .skipped = true}, 0),
            "step 1 of 9, loss 2.5000, its update was skipped");
}

}  // namespace
}  // namespace trainyard
