// The choice of a run folder, and when a run may use it or resume from it.
#include "client/run_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  // Makes the folder of a run that made its last progress `age_s` seconds ago.
  std::string Run(const std::string& name, const std::string& file, int age_s) {
    fs::path folder = fs::path(root_) / name;
    fs::create_directories(folder);
    std::ofstream(folder / file) << "x";
    fs::last_write_time(folder / file, fs::file_time_type::clock::now() - std::chrono::seconds(age_s));
    return folder.string();
  }

  const TemporaryFolder temporary_{"/tmp"};  // which every user may search
  const std::string root_ = temporary_.path();
};

TEST_F(RunFolderTest, NewestRun_IsTheOneThatMadeProgressLast) {
  Run("tiny-aaaaaaaa", "metrics.jsonl", 300);
  std::string newest = Run("tiny-bbbbbbbb", "metrics.jsonl", 100);
  Run("tiny-cccccccc", "metrics.jsonl", 200);

  EXPECT_EQ(NewestRun(root_, "tiny", /*needs_checkpoint=*/false), newest);
}

TEST_F(RunFolderTest, NewestRun_MatchesTheExactName) {
  Run("tiny-big-aaaaaaaa", "metrics.jsonl", 1);
  Run("other-aaaaaaaa", "metrics.jsonl", 1);
  Run("tiny-bbbbbbbb", "notes.txt", 1);

  EXPECT_EQ(NewestRun(root_, "tiny", /*needs_checkpoint=*/false), "");
  EXPECT_NE(NewestRun(root_, "", /*needs_checkpoint=*/false), "");
  EXPECT_EQ(NewestRun(root_ + "/none", "tiny", /*needs_checkpoint=*/false), "");
}

TEST_F(RunFolderTest, RunOfJob_IsTheFolderWithThisId) {
  const std::string folder = Run("tiny-aaaaaaaa", "metrics.jsonl", 1);
  Run("other-bbbbbbbb", "metrics.jsonl", 1);

  EXPECT_EQ(RunOfJob(root_, "aaaaaaaa"), folder);
  EXPECT_EQ(RunOfJob(root_, "cccccccc"), "");
  EXPECT_EQ(RunOfJob(root_, "a"), "") << "this is not an id";
  EXPECT_EQ(RunOfJob(root_ + "/none", "aaaaaaaa"), "");
}

TEST_F(RunFolderTest, FolderWithOnlyTheFilesThatEveryRunHas_CountsAsEmpty) {
  std::string folder = Run("a", ".lock", 1);
  fs::create_directories(folder + "/.trainyard/k3x7q2ab");
  EXPECT_TRUE(*RunFolderIsEmpty(folder));
  EXPECT_TRUE(*RunFolderIsEmpty(root_ + "/none"));

  Run("a", "thesis.txt", 1);
  EXPECT_FALSE(*RunFolderIsEmpty(folder));
}

TEST_F(RunFolderTest, NonEmptyFolder_IsRefusedWithBothRemedies) {
  std::string folder = Run("a", "thesis.txt", 1);

  absl::Status refused = CheckRunFolder(folder, /*resume=*/false);

  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "checkpoint.dir " + folder +
                " is not empty. Give --resume to resume from its newest checkpoint, or choose another folder: "
                "--set checkpoint.dir=DIR");
  EXPECT_TRUE(CheckRunFolder(folder, /*resume=*/true).ok());
}

TEST_F(RunFolderTest, ResumeWithoutCheckpoint_IsRefusedWithASuggestion) {
  Run("tour", "step-00000010", 1);
  Run("empty", "metrics.jsonl", 1);

  EXPECT_TRUE(CheckResumable(root_ + "/tour").ok());
  EXPECT_EQ(CheckResumable(root_ + "/tuor").message(),
            "--resume: checkpoint.dir " + root_ + "/tuor does not exist; did you mean " + root_ +
                "/tour? To train from step 1 instead, give --allow-fresh-start");
  EXPECT_NE(CheckResumable(root_ + "/empty").message().find("contains no checkpoint"), absl::string_view::npos);
}

TEST_F(RunFolderTest, ResumeContinuesTheNewestRunWithACheckpoint) {
  const std::string saved = Run("tiny-aaaaaaaa", "step-00000100", 300);
  Run("tiny-bbbbbbbb", "metrics.jsonl", 1);

  for (bool allow_fresh_start : {false, true}) {
    v1::SubmitRequest request;
    request.set_default_run_root(root_);
    request.set_resume(true);
    request.set_allow_fresh_start(allow_fresh_start);
    request.mutable_spec()->set_name("tiny");
    std::string notice;
    const absl::Status chosen = ChooseRunFolder(&request, /*on_this_machine=*/true, &notice);

    EXPECT_TRUE(chosen.ok()) << chosen;
    EXPECT_EQ(request.spec().checkpoint().dir(), saved) << notice;
  }
}

TEST_F(RunFolderTest, NothingToResumeIsRefusedUnlessAFreshStartIsAllowed) {
  v1::SubmitRequest request;
  request.set_default_run_root(root_);
  request.set_resume(true);
  request.mutable_spec()->set_name("tiny");
  std::string notice;

  EXPECT_EQ(ChooseRunFolder(&request, /*on_this_machine=*/false, &notice).code(),
            absl::StatusCode::kFailedPrecondition);
  request.set_allow_fresh_start(true);
  EXPECT_TRUE(ChooseRunFolder(&request, false, &notice).ok());
  EXPECT_NE(notice.find("starting from step 1"), std::string::npos) << notice;
  request.mutable_spec()->mutable_checkpoint()->set_dir(root_ + "/nowhere");
  request.set_resume(true);
  request.set_allow_fresh_start(false);
  EXPECT_TRUE(ChooseRunFolder(&request, false, &notice).ok()) << "the folder may be on other hosts, which check it";
  EXPECT_FALSE(ChooseRunFolder(&request, true, &notice).ok());
}

TEST_F(RunFolderTest, FileInPlaceOfAFolderIsRefused) {
  Run("a", "file", 1);
  EXPECT_EQ(CheckRunFolder(root_ + "/a/file", false).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RunFolderTest, RunningRun_IsNotResumed) {
  std::string folder = Run("a", "metrics.jsonl", 1);
  auto lock = FileLock::Acquire(folder + "/.lock", absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());

  absl::Status status = WaitUntilUnlocked(folder, absl::ZeroDuration());

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("is still running"), absl::string_view::npos) << status;
  lock->reset();
  EXPECT_TRUE(WaitUntilUnlocked(folder, absl::ZeroDuration()).ok());
}

// The daemons may belong to another user, and the folder may be mounted read-only on this machine.
TEST_F(RunFolderTest, RunWhoseLockThisUserMayNotOpen_IsLeftToTheTrainer) {
  const std::string folder = Run("a", ".lock", 1), lock = folder + "/.lock";
  fs::permissions(root_, fs::perms(0755));
  fs::permissions(folder, fs::perms(0755));
  fs::permissions(lock, fs::perms::none);
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65533) != 0) _exit(2);
    if (!FileExists(lock) || open(lock.c_str(), O_RDWR) >= 0) _exit(3);
    _exit(CheckRunFolder(folder, /*resume=*/true).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);

  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(RunFolderTest, NonUtf8WorkingDirectory_IsRefusedOnlyIfUsed) {
  v1::SubmitRequest request;
  request.mutable_spec()->mutable_train();
  request.set_default_run_root("/tmp/\xff/trainyard-runs");
  std::string notice;

  absl::Status status = ChooseRunFolder(&request, /*on_this_machine=*/true, &notice);

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            "the path of the working directory is not UTF-8 text, and the run folder would be created in it; set "
            "checkpoint.dir, or start trainctl in another directory");
  request.mutable_spec()->mutable_checkpoint()->set_dir(root_ + "/run");
  EXPECT_TRUE(ChooseRunFolder(&request, /*on_this_machine=*/true, &notice).ok());
  EXPECT_EQ(request.default_run_root(), "");
}

}  // namespace
}  // namespace trainyard::client
