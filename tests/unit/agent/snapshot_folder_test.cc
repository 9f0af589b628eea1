// The folder in shared memory for the snapshots of a daemon's trainers: creation, sweeps and removal.
#include "worker/agent/snapshot_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class SnapshotFolderTest : public ::testing::Test {
 protected:
  // Finds and creates the folder, as a daemon does before it starts a trainer.
  absl::StatusOr<std::shared_ptr<SnapshotFolder>> Open(const std::string& state, bool is_private = false) {
    auto found = SnapshotFolder::Find(Options(state, is_private));
    if (!found.ok()) return found;
    RemoveAbandonedFolders(Options(state, is_private), (*found)->path());
    absl::Status made = (*found)->Make();
    if (!made.ok()) return made;
    return found;
  }
  SnapshotFolderOptions Options(const std::string& state, bool is_private = false) const {
    return {.root = temporary_.path(), .state = state, .is_private = is_private, .may_be_on_disk = true};
  }
  std::string MakeState(const std::string& name) {
    const std::string path = JoinPath(states_.path(), name);
    std::filesystem::create_directory(path);
    return path;
  }
  static void Put(const SnapshotFolder& folder, const std::string& name) {
    std::ofstream(JoinPath(folder.path(), name)) << "snapshot";
  }
  static std::vector<std::string> SnapshotsIn(const std::string& path) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (name.find('.') != std::string::npos) names.push_back(name);
    }
    return names;
  }

  const TemporaryFolder temporary_, states_;
};

TEST_F(SnapshotFolderTest, Folder_IsPrivateAndKeepsSnapshotsOfRunningJobs) {
  auto folder = Open(MakeState("w1"));
  ASSERT_EQ(folder.status(), absl::OkStatus());
  for (const char* name : {"aaaa.g1.r0.a", "aaaa.g2.r0.b", "bbbb.g1.r3.a"}) Put(**folder, name);

  EXPECT_TRUE((*folder)->SetJobs({"bbbb"}));
  EXPECT_FALSE((*folder)->SetJobs({"aaaa", "cccc"})) << "a sweep was already requested";
  (*folder)->Sweep();

  EXPECT_THAT(SnapshotsIn((*folder)->path()), UnorderedElementsAre("aaaa.g1.r0.a", "aaaa.g2.r0.b"));
  EXPECT_TRUE((*folder)->SetJobs({}));
  struct stat info;
  ASSERT_EQ(stat((*folder)->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(SnapshotFolderTest, NextIncarnationOfTheDaemon_FindsItsTrainersSnapshots) {
  const std::string state = MakeState("w1");
  auto first = Open(state);
  ASSERT_EQ(first.status(), absl::OkStatus());
  Put(**first, "aaaa.g1.r0.a");
  *first = nullptr;

  auto second = Open(state);

  ASSERT_EQ(second.status(), absl::OkStatus());
  EXPECT_THAT(SnapshotsIn((*second)->path()), UnorderedElementsAre("aaaa.g1.r0.a"));
}

TEST_F(SnapshotFolderTest, FoldersThatNoLaterDaemonNeeds_AreRemoved) {
  std::string of_stopped_daemon, of_private_daemon, of_lost_state, of_running_daemon;
  const std::string lost = MakeState("lost");
  {
    auto one = Open(MakeState("stopped")), two = Open(MakeState("private"), /*is_private=*/true), three = Open(lost);
    of_stopped_daemon = one.value()->path(), of_private_daemon = two.value()->path(),
    of_lost_state = three.value()->path();
  }
  auto running = Open(MakeState("running"), /*is_private=*/true);
  of_running_daemon = running.value()->path();
  std::filesystem::remove_all(lost);

  auto opened = Open(MakeState("w1"));

  ASSERT_EQ(opened.status(), absl::OkStatus());
  EXPECT_TRUE(FileExists(of_stopped_daemon)) << "the folder must stay, because its daemon may be restarting";
  EXPECT_TRUE(FileExists(of_running_daemon));
  EXPECT_FALSE(FileExists(of_private_daemon));
  EXPECT_FALSE(FileExists(of_lost_state));
}

TEST_F(SnapshotFolderTest, DaemonWithoutAFolder_RemovesItsPreviousOne) {
  const std::string state = MakeState("w1");
  const std::string previous = Open(state).value()->path();
  EXPECT_TRUE(FileExists(previous));

  SnapshotFolderOptions none = Options(state);
  none.root = "";
  RemoveAbandonedFolders(none, "");

  EXPECT_FALSE(FileExists(previous));
}

TEST_F(SnapshotFolderTest, LockedFolder_IsNeverRemoved) {
  auto folder = Open(MakeState("w1"), /*is_private=*/true);
  std::filesystem::remove(JoinPath(folder.value()->path(), "daemon"));

  RemoveAbandonedFolders(Options(MakeState("w2")), "");

  EXPECT_TRUE(FileExists((*folder)->path()));
}

TEST_F(SnapshotFolderTest, Remove_LeavesNothing) {
  auto folder = Open(MakeState("w1"));
  Put(*folder.value(), "aaaa.g1.r0.a");

  (*folder)->Remove();

  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()));
}

TEST_F(SnapshotFolderTest, FolderThatOthersCanReadOrThatIsASymbolicLink_IsRefused) {
  const std::string state = MakeState("w1");
  const std::string path = Open(state).value()->path();
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_THAT(std::string(Open(state).status().message()), HasSubstr("closed to all others"));

  std::filesystem::remove_all(path);
  std::filesystem::create_directory_symlink(states_.path(), path);
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(state).status()));
  EXPECT_FALSE(FileExists(JoinPath(states_.path(), "lock"))) << "the symbolic link must not be followed";
}

TEST_F(SnapshotFolderTest, DaemonThatStartsNoTrainer_CreatesNoFolder) {
  auto found = SnapshotFolder::Find(Options(MakeState("w1")));

  ASSERT_EQ(found.status(), absl::OkStatus());
  EXPECT_FALSE(FileExists((*found)->path()));
}

TEST_F(SnapshotFolderTest, RemovedFolder_IsRecreatedForTheNextTrainer) {
  auto folder = Open(MakeState("w1"));
  ASSERT_EQ(folder.status(), absl::OkStatus());
  std::filesystem::remove_all((*folder)->path());

  ASSERT_EQ((*folder)->Make(), absl::OkStatus());

  EXPECT_TRUE(FileExists(JoinPath((*folder)->path(), "daemon")));
}

TEST_F(SnapshotFolderTest, RootOnADisk_IsRefused) {
  auto opened = SnapshotFolder::Find({.root = "/proc", .state = MakeState("w1")});

  EXPECT_TRUE(absl::IsFailedPrecondition(opened.status()));
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("/proc is not on a file system in memory"));
}

}  // namespace
}  // namespace trainyard::agent
