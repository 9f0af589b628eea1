// Token files: who may read them, and whose tokens are trusted.
#include "common/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr char kAddress[] = "127.0.0.1:7070";

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class TokensTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text, mode_t mode) const {
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_ / "a/tokens";
};

TEST_F(TokensTest, WrittenToken_IsReadBack_AndPrivate) {
  const std::string token = GenerateToken();

  ASSERT_EQ(WriteToken(folder_, kAddress, token), absl::OkStatus());

  EXPECT_EQ(*ReadOwnToken(folder_, kAddress), token);
  EXPECT_EQ(*ReadOwnToken(folder_, "127.0.0.1:7071"), "");
  EXPECT_EQ(ModeOf(folder_), 0700u);
  EXPECT_EQ(ModeOf(TokenPath(folder_, kAddress)), 0600u);
  EXPECT_NE(GenerateToken(), token);
}

TEST_F(TokensTest, FolderOpenToOthers_IsClosed) {
  ASSERT_EQ(WriteToken(folder_, kAddress, GenerateToken()), absl::OkStatus());
  chmod(folder_.c_str(), 0777);

  ASSERT_EQ(WriteToken(folder_, kAddress, GenerateToken()), absl::OkStatus());

  EXPECT_EQ(ModeOf(folder_), 0700u);
}

TEST_F(TokensTest, LinkInPlaceOfTheFolder_IsNotFollowed) {
  ASSERT_EQ(WriteToken(folder_, kAddress, GenerateToken()), absl::OkStatus());
  const std::string other = temporary_ / "a/other";
  ASSERT_EQ(rename(folder_.c_str(), other.c_str()), 0);
  ASSERT_EQ(symlink(other.c_str(), folder_.c_str()), 0);

  EXPECT_FALSE(WriteToken(folder_, kAddress, GenerateToken()).ok());
}

TEST_F(TokensTest, RemoveToken_KeepsTheTokenOfTheNextCoordinator) {
  const std::string first = GenerateToken(), second = GenerateToken();
  ASSERT_EQ(WriteToken(folder_, kAddress, first), absl::OkStatus());
  ASSERT_EQ(WriteToken(folder_, kAddress, second), absl::OkStatus());

  RemoveToken(folder_, kAddress, first);
  EXPECT_EQ(*ReadOwnToken(folder_, kAddress), second);
  RemoveToken(folder_, kAddress, second);
  EXPECT_EQ(*ReadOwnToken(folder_, kAddress), "");
}

TEST_F(TokensTest, OwnTokenThatOthersCanRead_IsRejected) {
  ASSERT_EQ(WriteToken(folder_, kAddress, GenerateToken()), absl::OkStatus());
  chmod(TokenPath(folder_, kAddress).c_str(), 0644);

  absl::Status status = ReadOwnToken(folder_, kAddress).status();

  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(TokenPath(folder_, kAddress)));
}

TEST_F(TokensTest, NamedToken_IsTrimmed_AndMadeIfMissing) {
  const std::string path = temporary_ / "token", made = temporary_ / "made";
  Write(path, "0123456789abcdef\n", 0640);

  EXPECT_EQ(ReadNamedToken(path)->token, "0123456789abcdef");
  EXPECT_EQ(ReadNamedToken(path)->owner, geteuid());
  EXPECT_TRUE(absl::IsNotFound(ReadNamedToken(made).status()));
  auto first = ReadOrMakeNamedToken(made);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ReadOrMakeNamedToken(made)->token, first->token);
  EXPECT_EQ(ModeOf(made), 0600u);
}

TEST_F(TokensTest, FullDisk_LeavesNoNamedToken_SoThatTheNextStartMakesOne) {
  const std::string path = temporary_ / "token";
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error, as on a full disk
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit nothing = before;
  nothing.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &nothing), 0);

  const absl::Status full = ReadOrMakeNamedToken(path).status();

  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(full.message()), HasSubstr(path));
  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path())) << "neither the file nor a temporary one is left";
  EXPECT_TRUE(ReadOrMakeNamedToken(path).ok());
  EXPECT_EQ(ModeOf(path), 0600u);
}

TEST_F(TokensTest, InvalidToken_IsRejected_AndNotPrinted) {
  const std::string path = temporary_ / "token";
  for (const char* text :
       {"", "short", "with a blank in the middle", "0123456789abcde\xc3\xa9", "0123456789abcdef\n0"}) {
    Write(path, text, 0600);

    absl::Status status = ReadNamedToken(path).status();

    EXPECT_TRUE(absl::IsInvalidArgument(status)) << "token '" << text << "': " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_TRUE(*text == '\0' || !absl::StrContains(status.message(), text)) << status;
  }
  Write(path, "0123456789abcdef", 0604);
  EXPECT_THAT(std::string(ReadNamedToken(path).status().message()), HasSubstr("chmod o="));
}

TEST_F(TokensTest, PipeInPlaceOfTheFile_DoesNotBlockTheReader) {
  const std::string path = temporary_ / "token";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);

  EXPECT_TRUE(absl::IsInvalidArgument(ReadNamedToken(path).status()));
}

TEST(TokenPath, Addresses_GetDifferentValidFileNames) {
  EXPECT_THAT(TokenPath("/t", "127.0.0.1:7070"), ::testing::EndsWith("-127.0.0.1-7070"));
  EXPECT_THAT(TokenPath("/t", "[::1]:7070"), ::testing::EndsWith("---1-7070"));
  EXPECT_NE(TokenPath("/t", "127.0.0.1:7070"), TokenPath("/t", "127.0.0.2:7070"));
  EXPECT_EQ(TokenPath("/t", "127.0.0.1:7070").rfind('/'), 2u);
}

TEST(SameToken, ComparesTheWholeText) {
  EXPECT_TRUE(SameToken("abc", "abc"));
  for (const char* other : {"", "ab", "abcd", "abd", "abcabc"}) {
    EXPECT_FALSE(SameToken("abc", other)) << other;
    EXPECT_FALSE(SameToken(other, "abc")) << other;
  }
}

}  // namespace
}  // namespace trainyard
