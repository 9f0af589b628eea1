// A run folder whose disk hangs or is mounted again while the rank trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>

#include "tests/unit/temporary_folder.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {
namespace {

std::shared_ptr<RunFolder> ClaimedFolder(const std::string& folder, const std::string& job) {
  auto acquired = RunFolder::Acquire({.folder = folder, .job_id = job, .generation = 1, .wait = absl::ZeroDuration()});
  EXPECT_TRUE(acquired.ok()) << acquired.status();
  if (!acquired.ok()) return nullptr;
  EXPECT_EQ((*acquired)->Claim(), absl::OkStatus());
  return *std::move(acquired);
}

// A thread that hangs in a call of the disk outlives its rank, and must then change nothing and keep no lock.
TEST(RunFolderDiskTest, ChecksOfASave_AreAbortedOnceTheRankHasLeft) {
  const TemporaryFolder folder;
  std::shared_ptr<RunFolder> lock = ClaimedFolder(folder.path(), "a");
  ASSERT_NE(lock, nullptr);
  const auto check = SaveFence(lock, folder.path(), "a", 1), recreate = FolderRecreation(lock);
  const auto check_of_step = StepFence(lock);
  const auto check_of_other_rank = SaveFence(nullptr, folder.path(), "a", 1);
  EXPECT_EQ(check(), absl::OkStatus());
  EXPECT_EQ(recreate(), absl::OkStatus());
  EXPECT_EQ(check_of_step(), absl::OkStatus());
  EXPECT_EQ(check_of_other_rank(), absl::OkStatus());

  lock.reset();

  EXPECT_TRUE(absl::IsAborted(check())) << check();
  EXPECT_TRUE(absl::IsAborted(recreate())) << recreate();
  EXPECT_TRUE(absl::IsAborted(check_of_step())) << check_of_step();
  ASSERT_NE(ClaimedFolder(folder.path(), "b"), nullptr) << "the lock was not released";
  EXPECT_TRUE(absl::IsAborted(check_of_other_rank())) << check_of_other_rank();
}

// A link to itself cannot be opened. It stands for a disk with an I/O error, or a stale file handle of NFS.
TEST(RunFolderDiskTest, FenceThatCannotBeRead_MayBeAnother_SoNothingIsChanged) {
  const TemporaryFolder folder;
  const std::shared_ptr<RunFolder> lock = ClaimedFolder(folder.path(), "a");
  ASSERT_NE(lock, nullptr);
  std::filesystem::remove(folder / ".fence");
  std::filesystem::create_symlink(folder / ".fence", folder / ".fence");

  EXPECT_TRUE(absl::IsUnavailable(SaveFence(lock, folder.path(), "a", 1)()));
  EXPECT_TRUE(absl::IsUnavailable(CheckFenceOf(folder.path(), "b", 1)));
  const RunFolder::Options next{.folder = folder.path(), .job_id = "a", .generation = 2, .wait = absl::ZeroDuration()};
  EXPECT_TRUE(absl::IsUnknown(RunFolder::Acquire(next).status())) << RunFolder::Acquire(next).status();
}

TEST(RunFolderDiskTest, WhatTheDiskShowsLate_IsAwaited) {
  int looks = 0;
  EXPECT_FALSE(AwaitThat([] { return false; }, absl::ZeroDuration()));
  EXPECT_TRUE(AwaitThat([&looks] { return ++looks == 3; }, absl::InfiniteDuration()));
  EXPECT_EQ(looks, 3);
}

// A link stands for the place where a disk is mounted.
TEST(RunFolderDiskTest, FolderOnADiskThatWasMountedAgain_IsUsed_ButNotAnotherDiskThere) {
  const TemporaryFolder disk, other_disk("/dev/shm"), place;
  const std::string run = place / "run";
  std::filesystem::create_directory_symlink(disk.path(), run);
  const std::shared_ptr<RunFolder> folder = ClaimedFolder(run, "a");
  ASSERT_NE(folder, nullptr);
  EXPECT_EQ(folder->CheckFolderExists(), absl::OkStatus());
  struct stat before, after;
  ASSERT_EQ(stat(disk.path().c_str(), &before), 0);
  ASSERT_EQ(stat(other_disk.path().c_str(), &after), 0);
  if (before.st_dev == after.st_dev) return;  // temporary files are in /dev/shm, too

  std::filesystem::remove(run);
  std::filesystem::create_directory_symlink(other_disk.path(), run);
  EXPECT_TRUE(absl::IsUnavailable(folder->CheckFolderExists())) << folder->CheckFolderExists();

  std::filesystem::copy_file(disk / ".fence", other_disk / ".fence");
  EXPECT_EQ(folder->CheckFolderExists(), absl::OkStatus());
  EXPECT_EQ(folder->RecreateIfRemoved(), absl::OkStatus()) << "the lock is acquired there, too";
  EXPECT_TRUE(FileExists(other_disk / ".lock"));
}

}  // namespace
}  // namespace trainyard
