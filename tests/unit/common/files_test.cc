#include "common/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/lock_holder.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

class FilesTest : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(FilesTest, WrittenFile_IsReadBack_AndLeavesNoTemporaryFile) {
  std::string path = JoinPath(folder_, "a");

  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());

  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FilesTest, Errors_NameThePathAndHaveACode) {
  absl::Status missing = ReadFile(JoinPath(folder_, "none")).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.message().find(folder_), absl::string_view::npos);

  ASSERT_TRUE(WriteFileAtomically(JoinPath(folder_, "big"), std::string(100, 'x')).ok());
  EXPECT_EQ(ReadFile(JoinPath(folder_, "big"), 99).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(MakeFolders(JoinPath(folder_, "big/below")).ok(), false);
  EXPECT_TRUE(absl::IsInvalidArgument(MakeFolders(JoinPath(folder_, std::string(300, 'n')))))
      << "no file system accepts so long a name";
}

TEST_F(FilesTest, FileToPassOn_IsNotReadThroughALinkOfAnotherUser) {
  constexpr uid_t kStranger = 65533;
  const std::string file = JoinPath(folder_, "file"), link = JoinPath(folder_, "link");
  ASSERT_TRUE(WriteFileAtomically(file, "private").ok());
  std::filesystem::create_symlink(file, link);
  EXPECT_EQ(ReadFileToPassOn(file).value_or(""), "private");
  EXPECT_EQ(ReadFileToPassOn(link).value_or(""), "private") << "this user has made the link";
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadFileToPassOn(folder_).status()));
  if (lchown(link.c_str(), kStranger, kStranger) != 0) return;  // only root can change the owner of a file

  EXPECT_TRUE(absl::IsPermissionDenied(ReadFileToPassOn(link).status()));

  ASSERT_EQ(chown(file.c_str(), kStranger, kStranger), 0);
  EXPECT_EQ(ReadFileToPassOn(link).value_or(""), "private") << "both belong to one user, as in a cache of downloads";
}

TEST_F(FilesTest, Lock_HasOneHolder) {
  std::string path = JoinPath(folder_, ".lock");
  auto first = FileLock::Acquire(path, absl::ZeroDuration());
  ASSERT_TRUE(first.ok()) << first.status();

  absl::Status second = FileLock::Acquire(path, absl::ZeroDuration()).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable);
  std::string holder = absl::StrCat("is locked by process ", getpid(), " (");
  EXPECT_NE(second.message().find(holder), absl::string_view::npos)
      << second << ": it should name the process and its command";
  EXPECT_NE(second.message().find("common_test"), absl::string_view::npos) << second;

  first->reset();
  EXPECT_TRUE(FileLock::Acquire(path, absl::ZeroDuration()).ok());
}

// The path may be mistyped, and what is there may be a folder full of data, or a disk.
TEST_F(FilesTest, PathThatIsNotAFile_IsRefusedWithoutTheAdviceToRemoveIt) {
  const absl::Status status = OpenRegularFile(folder_, O_RDONLY).status();

  EXPECT_EQ(status.message(), folder_ + " is a folder, but a file was expected; check the path and what is there");
}

TEST(LockFile, NamesProcessAndHost_BecauseTheHolderMayBeOnAnotherHost) {
  EXPECT_EQ(HolderInLockFile("123 w1\n"), "process 123 on host w1");
  EXPECT_EQ(HolderInLockFile("123\n"), "process 123") << "written by an earlier version";
  for (const char* text : {"", "\n", "w1 123"}) EXPECT_EQ(HolderInLockFile(text), "another process") << text;
  EXPECT_EQ(HolderInLockFile(LockFileText()).find(absl::StrCat("process ", getpid(), " on host ")), 0u);
}

// A limit on the size of files stands for a full disk.
TEST_F(FilesTest, Lock_IsAcquired_IfThePidCannotBeWritten) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);

  const absl::Status acquired = FileLock::Acquire(JoinPath(folder_, ".lock"), absl::ZeroDuration()).status();
  const absl::Status seized = FileLock::Seize(JoinPath(folder_, ".lock")).status();

  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_TRUE(acquired.ok()) << acquired;
  EXPECT_TRUE(seized.ok()) << seized;
}

TEST(Paths, AbsolutePath_DoesNotReadTheFileSystem) {
  EXPECT_EQ(AbsolutePath("a/../b", "/w"), "/w/b");
  EXPECT_EQ(AbsolutePath("/a//b/./c/", "/w"), "/a/b/c");
  EXPECT_EQ(AbsolutePath(".", "/w"), "/w");
  EXPECT_EQ(AbsolutePath("../..", "/w"), "/");
  EXPECT_EQ(JoinPath("/a/", "b"), "/a/b");
}

TEST(StandardInput, MayBeASocket) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const int before = dup(STDIN_FILENO);
  ASSERT_GE(dup2(ends[0], STDIN_FILENO), 0);
  ASSERT_EQ(write(ends[1], "name: tiny\n", 11), 11);
  close(ends[1]);

  const auto text = ReadStandardInput(100);

  dup2(before, STDIN_FILENO);
  close(before);
  close(ends[0]);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "name: tiny\n");
}

}  // namespace
}  // namespace trainyard
