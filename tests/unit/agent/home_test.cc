// State folder and sockets that disappear while a daemon runs.
#include "worker/agent/home.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/rank_folder.h"

namespace trainyard::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool CanDial(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return connected;
}

class HomeTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<Home>> Acquire(const std::string& name) {
    return Home::Acquire({.state = temporary_ / name, .sockets = {.runtime = "", .shared = temporary_.path()}});
  }
  std::shared_ptr<Home> home_;
  const TemporaryFolder temporary_;
};

TEST_F(HomeTest, Socket_IsInTheStateFolderWhereALogoutDoesNotRemoveIt) {
  home_ = Acquire("state").value();

  EXPECT_EQ(home_->listener()->path(), temporary_ / "state/worker.sock");
  EXPECT_TRUE(CanDial(home_->listener()->path()));
}

TEST_F(HomeTest, SocketOfALongStateFolder_IsInAFolderWithAShorterPath) {
  home_ = Acquire(std::string(120, 's')).value();

  EXPECT_THAT(home_->listener()->path(), StartsWith(temporary_ / "trainyard-"));
  EXPECT_TRUE(CanDial(home_->listener()->path()));
  std::filesystem::remove_all(std::filesystem::path(home_->listener()->path()).parent_path());

  const HomeChecked checked = home_->Inspect();

  EXPECT_TRUE(checked.socket_is_new);
  EXPECT_EQ(checked.trouble, "");
  EXPECT_TRUE(CanDial(home_->listener()->path()));
  EXPECT_FALSE(home_->Inspect().socket_is_new) << "a new socket is reported only once";
}

TEST_F(HomeTest, TrainersOfAnEarlierIncarnation_FindTheDaemonAtTheEarlierSocket) {
  const std::string earlier = temporary_ / "run/worker-1.sock";
  ASSERT_TRUE(MakeFolders(temporary_ / "state/ranks").ok());
  LaunchRecord launch = {.program = "/t", .arguments = {"/t", kLinkFlag, earlier}, .variables = {}, .log_bytes = 1};
  ASSERT_EQ(MakeRankFolder(temporary_ / "state/ranks/job23456.g1.r0", launch), absl::OkStatus());

  home_ = Acquire("state").value();
  EXPECT_TRUE(CanDial(earlier));
  std::filesystem::remove_all(temporary_ / "run");

  EXPECT_TRUE(home_->Inspect().socket_is_new);
  EXPECT_TRUE(CanDial(earlier));
}

TEST_F(HomeTest, RemovedStateFolder_IsRecreatedAndLockedAndHasANewSocket) {
  home_ = Acquire("state").value();
  std::filesystem::remove_all(temporary_ / "state");

  EXPECT_EQ(home_->Check(), absl::OkStatus()) << "a trainer can be started immediately";

  const HomeChecked checked = home_->Inspect();
  EXPECT_TRUE(checked.state_is_new && checked.socket_is_new) << "reported by Inspect, although Check recreated them";
  EXPECT_TRUE(CanDial(home_->listener()->path()));
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Acquire(temporary_ / "state/lock", absl::ZeroDuration()).status()));
  EXPECT_FALSE(home_->Inspect().state_is_new);
}

TEST_F(HomeTest, RemovedContentsOfTheStateFolder_AreRecreated) {
  home_ = Acquire("state").value();
  std::filesystem::remove_all(temporary_ / "state/ranks");
  EXPECT_TRUE(home_->Inspect().state_is_new);
  EXPECT_TRUE(FileExists(home_->ranks()));

  std::filesystem::remove(temporary_ / "state/lock");
  EXPECT_EQ(home_->Inspect().trouble, "");
  EXPECT_TRUE(absl::IsUnavailable(FileLock::Acquire(temporary_ / "state/lock", absl::ZeroDuration()).status()));
}

TEST_F(HomeTest, FolderThatAnotherDaemonClaimed_IsReportedAsTrouble) {
  home_ = Acquire("state").value();
  std::filesystem::rename(temporary_ / "state", temporary_ / "moved");
  ASSERT_TRUE(MakeFolders(temporary_ / "state").ok());
  auto other = FileLock::Acquire(temporary_ / "state/lock", absl::ZeroDuration());
  ASSERT_TRUE(other.ok());

  EXPECT_THAT(home_->Inspect().trouble, HasSubstr("belongs to another worker daemon"));
  other->reset();
  EXPECT_EQ(home_->Inspect().trouble, "");
}

TEST_F(HomeTest, UnmountedDisk_IsNotHiddenByAFolderInItsPlace) {
  const TemporaryFolder disk("/dev/shm");
  std::filesystem::create_directory_symlink(disk.path(), temporary_ / "disk");
  home_ = Acquire("disk/state").value();
  ASSERT_NE(IdOf(disk.path())->device, IdOf(temporary_.path())->device);
  std::filesystem::remove(temporary_ / "disk");
  std::filesystem::create_directory(temporary_ / "disk");

  EXPECT_THAT(home_->Inspect().trouble, HasSubstr("mount it again"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary_ / "disk"));

  std::filesystem::remove(temporary_ / "disk");
  std::filesystem::create_directory_symlink(disk.path(), temporary_ / "disk");
  EXPECT_EQ(home_->Inspect().trouble, "");
}

// An upgrade replaces the programs while the daemon of the old version still runs.
TEST_F(HomeTest, ReplacedProgram_IsNotStarted) {
  const std::string shim = temporary_ / "shim", trainer = temporary_ / "trainer";
  ASSERT_EQ(WriteFileAtomically(shim, "1"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(trainer, "1"), absl::OkStatus());
  home_ = Home::Acquire({.state = temporary_ / "state",
                         .sockets = {.runtime = "", .shared = temporary_.path()},
                         .programs = {shim, trainer, temporary_ / "missing"}})
              .value();
  EXPECT_EQ(home_->Inspect().trouble, "");
  EXPECT_EQ(home_->Check(), absl::OkStatus());

  ASSERT_EQ(WriteFileAtomically(trainer, "2"), absl::OkStatus());
  EXPECT_THAT(home_->Inspect().trouble, StartsWith(absl::StrCat(trainer, " was replaced after this daemon")));
  EXPECT_TRUE(absl::IsUnavailable(home_->Check()));

  std::filesystem::remove(shim);
  EXPECT_THAT(home_->Inspect().trouble, StartsWith(absl::StrCat(shim, " was removed")));

  // A link to itself stands for a file system that answers with an error.
  std::filesystem::create_symlink(shim, shim);
  EXPECT_THAT(home_->Inspect().trouble, StartsWith(absl::StrCat("cannot examine ", shim)));
}

TEST_F(HomeTest, RootThatAnotherUserCanChange_IsRefused) {
  const std::string root = temporary_ / "root";
  std::filesystem::create_directory(root);
  ASSERT_EQ(chmod(root.c_str(), 0777), 0);

  auto home = Home::Acquire({.state = JoinPath(root, "trainyard/a"), .own_root = root});

  EXPECT_TRUE(absl::IsFailedPrecondition(home.status())) << home.status();
  EXPECT_FALSE(FileExists(JoinPath(root, "trainyard")));
}

}  // namespace
}  // namespace trainyard::agent
