// The log file of a daemon: rotation, reopening, and what happens when the file cannot be written or renamed.
#include "common/rotated_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

class RotatedLogTest : public testing::Test {
 protected:
  std::unique_ptr<RotatedLog> Open(uint64_t max_bytes, uint32_t max_files) {
    auto file = RotatedLog::Open({.path = path_, .max_bytes = max_bytes, .max_files = max_files});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  std::string Content(const std::string& suffix = "") {
    return ReadFile(path_ + suffix, /*max_bytes=*/1 << 20).value_or("(none)");
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/daemon.log";
};

TEST_F(RotatedLogTest, FullFile_IsRenamed_AndTheOldestIsRemoved) {
  auto file = Open(/*max_bytes=*/10, /*max_files=*/2);
  for (const char* line : {"line 1\n", "line 2\n", "line 3\n", "line 4\n"}) EXPECT_TRUE(file->Write(line));

  EXPECT_EQ(Content(), "line 4\n");
  EXPECT_EQ(Content(".1"), "line 3\n");
  EXPECT_EQ(Content(".2"), "line 2\n");
  EXPECT_EQ(Content(".3"), "(none)");
}

TEST_F(RotatedLogTest, FileOpenedAgain_IsAppendedTo_AndKeepsTheLimit) {
  ASSERT_TRUE(Open(20, 1)->Write("earlier\n"));
  auto file = Open(20, 1);
  EXPECT_TRUE(file->Write("later\n"));
  EXPECT_EQ(Content(), "earlier\nlater\n");
  EXPECT_TRUE(file->Write("too long for it\n"));
  EXPECT_EQ(Content(), "too long for it\n");
  EXPECT_EQ(Content(".1"), "earlier\nlater\n");
}

TEST_F(RotatedLogTest, LineLongerThanTheLimit_IsWrittenAlone) {
  auto file = Open(4, 1);
  EXPECT_TRUE(file->Write("a long line\n"));
  EXPECT_EQ(Content(), "a long line\n");
}

TEST_F(RotatedLogTest, FileRenamedByAnotherProgram_IsWrittenUntilTheRequestToReopen) {
  auto file = Open(0, 1);
  EXPECT_TRUE(file->Write("a\n"));
  ASSERT_EQ(std::rename(path_.c_str(), (path_ + ".old").c_str()), 0);
  EXPECT_TRUE(file->Write("b\n"));
  EXPECT_EQ(Content(".old"), "a\nb\n");
  file->RequestReopen();
  EXPECT_TRUE(file->Write("c\n"));
  EXPECT_EQ(Content(), "c\n");
}

TEST_F(RotatedLogTest, FileThatCannotBeRenamed_Grows) {
  auto file = Open(4, 1);
  EXPECT_TRUE(file->Write("a\n"));
  ASSERT_EQ(mkdir((path_ + ".1").c_str(), 0700), 0);
  ASSERT_EQ(mkdir((path_ + ".1/x").c_str(), 0700), 0);
  EXPECT_TRUE(file->Write("longer\n"));
  EXPECT_EQ(Content(), "a\nlonger\n");
}

TEST_F(RotatedLogTest, FileThatCannotBeRenamed_IsRenamedLater_AfterMaxBytesMore) {
  auto file = Open(/*max_bytes=*/10, /*max_files=*/1);
  EXPECT_TRUE(file->Write("line one\n"));
  ASSERT_EQ(mkdir((path_ + ".1").c_str(), 0700), 0);
  EXPECT_TRUE(file->Write("two\n"));
  ASSERT_EQ(rmdir((path_ + ".1").c_str()), 0);

  EXPECT_TRUE(file->Write("three\n"));
  EXPECT_EQ(Content(".1"), "(none)");
  EXPECT_TRUE(file->Write("four\n"));

  EXPECT_EQ(Content(), "four\n");
  EXPECT_EQ(Content(".1"), "line one\ntwo\nthree\n");
}

TEST_F(RotatedLogTest, PathThatCannotBeALogFile_IsRefused) {
  for (const std::string& path : {folder_.path(), std::string("/dev/null"), folder_.path() + "/none/x.log"}) {
    EXPECT_FALSE(RotatedLog::Open({.path = path}).ok()) << path;
  }
}

TEST_F(RotatedLogTest, FullDevice_LosesTheLine) {
  auto file = Open(0, 1);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 4, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(file->Write("more than fits\n"));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(file->Write("fits\n"));
}

}  // namespace
}  // namespace trainyard
