#include "common/private_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

class PrivateFolderTest : public testing::Test {
 protected:
  const TemporaryFolder temporary_;
};

TEST_F(PrivateFolderTest, Folder_IsMadeForItsOwnerOnly_AndFoundAgain) {
  const std::string path = temporary_ / "own";

  ASSERT_EQ(MakePrivateFolder(path), absl::OkStatus());
  EXPECT_EQ(MakePrivateFolder(path), absl::OkStatus());

  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(PrivateFolderTest, LinkFileOrFolderOfAnotherUser_IsRejectedByName) {
  std::filesystem::create_directory(temporary_ / "theirs");
  ASSERT_EQ(chmod((temporary_ / "theirs").c_str(), 0777), 0);
  ASSERT_EQ(MakePrivateFolder(temporary_ / "own"), absl::OkStatus());
  std::filesystem::create_directory_symlink(temporary_ / "own", temporary_ / "link");
  ASSERT_TRUE(WriteFileAtomically(temporary_ / "file", "").ok());

  EXPECT_THAT(std::string(MakePrivateFolder(temporary_ / "theirs").message()), HasSubstr("has mode 0777"));
  EXPECT_THAT(std::string(MakePrivateFolder(temporary_ / "link").message()), HasSubstr("a symbolic link"));
  EXPECT_THAT(std::string(MakePrivateFolder(temporary_ / "file").message()), HasSubstr("must be a folder"));
  EXPECT_TRUE(absl::IsFailedPrecondition(MakePrivateFolder(temporary_ / "link")));
  ASSERT_EQ(MakePrivateFolder(temporary_ / "given"), absl::OkStatus());
  // Only root can make a folder that belongs to another user.
  const bool is_given = chown((temporary_ / "given").c_str(), 12345, 12345) == 0;
  EXPECT_THAT(std::string(MakePrivateFolder(temporary_ / "given").message()),
              is_given ? HasSubstr("belongs to user 12345") : HasSubstr(""));
}

TEST_F(PrivateFolderTest, RuntimeFolder_IsUsedOnlyIfTheUserLingers) {
  ASSERT_EQ(MakePrivateFolder(temporary_ / "run"), absl::OkStatus());
  SocketPlaces places = {.runtime = temporary_ / "run", .lingers = false, .shared = temporary_.path()};
  const std::string shared = temporary_ / absl::StrCat("trainyard-", geteuid());

  EXPECT_EQ(*MakeSocketFolder(places), shared);
  places.lingers = true;
  EXPECT_EQ(*MakeSocketFolder(places), temporary_ / "run/trainyard");
  std::filesystem::remove_all(temporary_ / "run");
  EXPECT_EQ(*MakeSocketFolder(places), shared) << "there is no such folder";
}

TEST_F(PrivateFolderTest, NameOfAnotherUsersFolder_IsReplacedByARandomName) {
  const std::string usual_path = temporary_ / absl::StrCat("trainyard-", geteuid());
  std::filesystem::create_directory(usual_path);
  ASSERT_EQ(chmod(usual_path.c_str(), 0777), 0);

  auto folder = MakeSocketFolder({.runtime = "", .lingers = false, .shared = temporary_.path()});

  ASSERT_EQ(folder.status(), absl::OkStatus());
  EXPECT_TRUE(absl::StartsWith(*folder, absl::StrCat(usual_path, "-")));
  EXPECT_EQ(CheckPrivateFolder(*folder), absl::OkStatus());
}

TEST(SocketFolder, IsShort) {
  auto folder = SocketFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_LT(folder->size(), 60u);
}

}  // namespace
}  // namespace trainyard
