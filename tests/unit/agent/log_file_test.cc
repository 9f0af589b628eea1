// Reading the lines of a rank's output across rotations, and replacing bytes that are not UTF-8.
#include "worker/agent/log_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/plain_text.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogFileTest : public ::testing::Test {
 protected:
  void Append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }
  void Rotate() { std::filesystem::rename(path_, path_ + ".1"); }
  std::vector<std::string> ReadAll(LogFile& file) {
    std::vector<std::string> lines;
    while (file.Read(1 << 20, &lines)) {
    }
    return lines;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  const std::string path_ = temporary_ / "stdout.log";
};

TEST_F(LogFileTest, MissingFile_HasNoLinesYet) {
  LogFile file(path_);
  EXPECT_THAT(ReadAll(file), IsEmpty());

  Append("now\n");

  EXPECT_THAT(ReadAll(file), ElementsAre("now"));
}

TEST_F(LogFileTest, LineInPieces_IsReturnedWhenItEnds) {
  LogFile file(path_);
  Append("half");
  EXPECT_THAT(ReadAll(file), IsEmpty());

  Append(" and half\n");

  EXPECT_THAT(ReadAll(file), ElementsAre("half and half"));
}

TEST_F(LogFileTest, LastLineWithoutAnEnd_IsReturnedByFinish) {
  LogFile file(path_);
  Append("a\nb");
  std::vector<std::string> lines = ReadAll(file);

  file.Finish(&lines);

  EXPECT_THAT(lines, ElementsAre("a", "b"));
}

TEST_F(LogFileTest, Finish_ClosesTheFile) {
  const auto is_open = [this] {
    const std::filesystem::path path = std::filesystem::canonical(path_);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // of a descriptor that was closed meanwhile
      if (std::filesystem::read_symlink(entry.path(), gone) == path) return true;
    }
    return false;
  };
  LogFile file(path_);
  Append("a\n");
  std::vector<std::string> lines = ReadAll(file);
  EXPECT_TRUE(is_open());

  file.Finish(&lines);

  EXPECT_FALSE(is_open());
  EXPECT_THAT(lines, ElementsAre("a"));
}

TEST_F(LogFileTest, RotatedFile_IsReadFirst) {
  Append("old\n");
  Rotate();
  Append("new\n");

  LogFile file(path_);

  EXPECT_THAT(ReadAll(file), ElementsAre("old", "new"));
}

TEST_F(LogFileTest, RotationWhileReading_LosesNothing) {
  LogFile file(path_);
  std::vector<std::string> expected;
  std::vector<std::string> lines;
  for (int i = 0; i < 20; ++i) {
    Append(absl::StrCat("line ", i, "\n"));
    expected.push_back(absl::StrCat("line ", i));
    if (i % 3 == 0) {
      for (std::string& line : ReadAll(file)) lines.push_back(std::move(line));
    }
    if (i % 3 == 1) Rotate();
  }
  for (std::string& line : ReadAll(file)) lines.push_back(std::move(line));

  EXPECT_EQ(lines, expected);
}

TEST_F(LogFileTest, OutputThatIsRotatedAwayBeforeItIsRead_IsReportedAsMissing) {
  LogFile file(path_);
  Append("a\nb");
  EXPECT_THAT(ReadAll(file), ElementsAre("a"));
  Append(" is read\n");
  Rotate();
  Append("is lost\n");
  Rotate();
  Append("c\n");
  Rotate();
  Append("d\n");

  EXPECT_THAT(ReadAll(file), ElementsAre("b is read", kMissingOutput, "c", "d"));
}

TEST_F(LogFileTest, LineBeyondTheLimit_IsReturnedInPieces) {
  Append(std::string(limits::kLogLineBytes * 2 + 5, 'x') + "\n" + std::string(limits::kLogLineBytes, 'y') + "\n");
  LogFile file(path_);

  std::vector<std::string> lines = ReadAll(file);

  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0].size(), limits::kLogLineBytes);
  EXPECT_EQ(lines[2], "xxxxx");
  EXPECT_EQ(lines[3].size(), limits::kLogLineBytes);
}

TEST_F(LogFileTest, ProgressBar_IsReturnedAsATerminalShowsIt_AndItsFinalStateAsOneLine) {
  LogFile file(path_);
  EXPECT_EQ(file.TakeProgress(), "");
  Append("loading\n\r  0%|   |");
  EXPECT_THAT(ReadAll(file), ElementsAre("loading"));
  EXPECT_EQ(file.TakeProgress(), "  0%|   |");
  EXPECT_EQ(file.TakeProgress(), "");
  Append("\r 30%|#  |\r 60%|## |");
  EXPECT_THAT(ReadAll(file), IsEmpty());
  EXPECT_EQ(file.TakeProgress(), " 60%|## |");

  Append("\r100%|###|\nloaded\n");

  EXPECT_THAT(ReadAll(file), ElementsAre("100%|###|", "loaded"));
  EXPECT_EQ(file.TakeProgress(), "");
}

TEST_F(LogFileTest, TextBeforeACarriageReturn_IsProgressUntilItIsOverwritten) {
  LogFile file(path_);
  Append("1 of 9\r");
  EXPECT_THAT(ReadAll(file), IsEmpty());
  EXPECT_EQ(file.TakeProgress(), "1 of 9");

  Append("done\n");

  EXPECT_THAT(ReadAll(file), ElementsAre("done"));
}

TEST_F(LogFileTest, LineThatEndsAsOnWindows_IsReturnedWithoutTheCarriageReturn) {
  LogFile file(path_);
  Append("a\r");
  EXPECT_THAT(ReadAll(file), IsEmpty());

  Append("\nb\r\nc\r\r\n");  // a terminal adds a carriage return to the end of a Windows line

  EXPECT_THAT(ReadAll(file), ElementsAre("a", "b", "c"));
}

TEST_F(LogFileTest, BarThatWasCleared_IsNoLine) {
  LogFile file(path_);
  Append("\r 50%|#|\r       \r");
  std::vector<std::string> lines = ReadAll(file);
  EXPECT_EQ(file.TakeProgress(), "");

  file.Finish(&lines);

  EXPECT_THAT(lines, IsEmpty());
}

TEST(ValidUtf8, KeepsValidTextAndReplacesTheRest) {
  EXPECT_EQ(ValidUtf8("gr\xc3\xbc\xc3\x9f dich", 100), "gr\xc3\xbc\xc3\x9f dich");
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b",
                      100),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(ValidUtf8("\xc0\xaf", 100), "\xef\xbf\xbd\xef\xbf\xbd");  // overlong
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80", 3), "\xef\xbf\xbd");            // a surrogate; the limit allows one replacement
  EXPECT_EQ(ValidUtf8("\xf0\x9f\x9a", 100), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // cut short
  EXPECT_EQ(ValidUtf8("abc\xc3\xbc", 4), "abc");                                      // never half a character
}

}  // namespace
}  // namespace trainyard::agent
