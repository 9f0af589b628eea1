// The rank folders of a daemon: their records, listing and pruning; and the inventory of the host.
#include "worker/agent/rank_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/inventory.h"

namespace trainyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RankFolderTest : public ::testing::Test {
 protected:
  // Makes the folder of a rank that has ended; it was last changed `age_s` seconds ago.
  std::string Make(const TrainerId& id, int age_s, bool reported) {
    std::string folder = JoinPath(ranks_, FolderName(id));
    EXPECT_EQ(MakeRankFolder(
                  folder, {.program = "/bin/true", .arguments = {"t", "--x"}, .variables = {"A=b=c"}, .log_bytes = 7}),
              absl::OkStatus());
    if (reported) {
      EXPECT_EQ(MarkFolderReported(folder), absl::OkStatus());
    }
    std::filesystem::last_write_time(folder,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::seconds(age_s));
    return folder;
  }

  const TemporaryFolder temporary_;
  const std::string ranks_ = temporary_.path();
};

TrainerId Rank(uint32_t rank) { return {JobId("job23456"), Generation(2), rank}; }

TEST_F(RankFolderTest, Launch_ReadsBackAsWritten) {
  std::string folder = Make(Rank(1), 0, false);

  absl::StatusOr<LaunchRecord> launch = ReadLaunch(folder);

  ASSERT_EQ(launch.status(), absl::OkStatus());
  EXPECT_EQ(launch->program, "/bin/true");
  EXPECT_THAT(launch->arguments, ElementsAre("t", "--x"));
  EXPECT_THAT(launch->variables, ElementsAre("A=b=c"));
  EXPECT_EQ(launch->log_bytes, 7);
}

TEST_F(RankFolderTest, LinksOfTrainersAndCommands_AreFound_AndAnArgumentOfACommandIsNotTakenForALink) {
  const auto make = [this](uint32_t rank, std::vector<std::string> arguments, std::vector<std::string> variables) {
    EXPECT_EQ(MakeRankFolder(JoinPath(ranks_, FolderName(Rank(rank))), {.program = "/bin/true",
                                                                        .arguments = std::move(arguments),
                                                                        .variables = std::move(variables),
                                                                        .log_bytes = 1}),
              absl::OkStatus());
  };
  make(0, {"trainer", "--link", "/run/trainer"}, {});
  make(1, {"script", "--link", "/home/ada/key"}, {"TORCHELASTIC_ERROR_FILE=/e", "TRAINYARD_LINK=/run/command"});
  make(2, {"script", "--link", "/home/ada/key"}, {"TORCHELASTIC_ERROR_FILE=/e"});
  make(kCheckRank, {"check", "--link", "/home/ada/key"}, {});

  EXPECT_THAT(LinksOfTrainers(ranks_), ElementsAre("/run/command", "/run/trainer"));
}

TEST_F(RankFolderTest, TheGraceAndTheMemoryLimitOfACommand_AreInItsLaunch) {
  LaunchRecord launch = {.program = "/t", .arguments = {"t"}, .variables = {}};
  ASSERT_EQ(MakeRankFolder(JoinPath(ranks_, "without"), launch), absl::OkStatus());
  launch.grace = absl::Milliseconds(1500);
  launch.memory_bytes = 3 << 20;
  ASSERT_EQ(MakeRankFolder(JoinPath(ranks_, "with"), launch), absl::OkStatus());

  EXPECT_EQ(ReadLaunch(JoinPath(ranks_, "with"))->grace, absl::Milliseconds(1500));
  EXPECT_EQ(ReadLaunch(JoinPath(ranks_, "with"))->memory_bytes, 3u << 20);
  EXPECT_FALSE(ReadLaunch(JoinPath(ranks_, "without"))->grace.has_value());
  EXPECT_EQ(ReadLaunch(JoinPath(ranks_, "without"))->memory_bytes, 0u);
}

TEST_F(RankFolderTest, LaunchWithAZeroByteInAField_IsRefusedAndLeavesNothing) {
  LaunchRecord launch = {
      .program = "/t", .arguments = {"/t"}, .variables = {std::string("A=b\0C=d", 7)}, .log_bytes = 1};

  absl::Status made = MakeRankFolder(JoinPath(ranks_, "job23456.g1.r7"), launch);

  EXPECT_TRUE(absl::IsInvalidArgument(made)) << made;
  EXPECT_FALSE(FileExists(JoinPath(ranks_, "job23456.g1.r7")));
}

TEST_F(RankFolderTest, DamagedRecord_IsDistinguishedFromAMissingOne) {
  std::string folder = Make(Rank(1), 0, false);
  EXPECT_TRUE(absl::IsNotFound(ReadExit(folder).status()));

  std::ofstream(JoinPath(folder, "exit")) << "cause=ex";

  EXPECT_TRUE(absl::IsDataLoss(ReadExit(folder).status()));
}

TEST_F(RankFolderTest, StartFailure_IsReadAsAnExit) {
  std::string folder = Make(Rank(1), 0, false);

  for (const absl::Status& why : {absl::ResourceExhaustedError("disk full"), absl::NotFoundError("no such program")}) {
    ASSERT_EQ(WriteStartFailure(folder, why), absl::OkStatus());

    EXPECT_EQ(ReadExit(folder)->cause(), v1::TrainerExited::CAUSE_START_FAILED);
    EXPECT_EQ(ReadExit(folder)->message(), why.message());
    EXPECT_EQ(ReadExit(folder)->may_pass(), absl::IsResourceExhausted(why));
  }
}

TEST_F(RankFolderTest, LostExit_ContainsTheEndOfTheOutput) {
  std::string folder = Make(Rank(1), 0, false);
  std::ofstream(JoinPath(folder, "stdout.log")) << "one\ntwo\n";
  std::ofstream(JoinPath(folder, "stderr.log")) << "three";

  EXPECT_THAT(LostExit(folder).last_lines(), ElementsAre("one", "two", "three"));
}

TEST_F(RankFolderTest, List_IsOldestFirstAndSkipsOtherFolders) {
  Make(Rank(0), 10, true);
  Make(Rank(1), 30, true);
  std::filesystem::create_directory(JoinPath(ranks_, "notes"));
  std::filesystem::create_directory(JoinPath(ranks_, "job.g1.rx"));

  EXPECT_THAT(ListRankFolders(ranks_), ElementsAre(Rank(1), Rank(0)));
}

TEST_F(RankFolderTest, Prune_RemovesTheOldestReportedFolders) {
  for (uint32_t rank = 0; rank < 6; ++rank) Make(Rank(rank), 100 - static_cast<int>(rank), /*reported=*/rank != 1);

  PruneRankFolders(ranks_, {.folders = 2});

  EXPECT_THAT(ListRankFolders(ranks_), ElementsAre(Rank(1), Rank(4), Rank(5)));
}

TEST_F(RankFolderTest, Prune_KeepsTheLimitOfBytes) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::string folder = Make(Rank(rank), 0, true);
    std::ofstream(JoinPath(folder, "stdout.log")) << std::string(1'000'000, 'x');
    std::filesystem::last_write_time(folder,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::seconds(9 - rank));
  }

  PruneRankFolders(ranks_, {.folders = 100, .bytes = 2'500'000});

  EXPECT_THAT(ListRankFolders(ranks_), ElementsAre(Rank(2), Rank(3)));
}

TEST_F(RankFolderTest, Prune_DoesNotCountFoldersThatItMayNotRemove) {
  std::ofstream(JoinPath(Make(Rank(0), 0, /*reported=*/false), "stdout.log")) << std::string(3'000'000, 'x');
  std::ofstream(JoinPath(Make(Rank(1), 0, /*reported=*/true), "stdout.log")) << std::string(1'000'000, 'x');

  RankFolders left = PruneRankFolders(ranks_, {.folders = 1, .bytes = 2'000'000});

  EXPECT_TRUE(FileExists(JoinPath(ranks_, FolderName(Rank(1)))));
  EXPECT_EQ(left.count, 2u);
  EXPECT_GE(left.bytes, 4'000'000u);
}

TEST(FolderLimitsOfAHost, HaveSpaceForTheOutputOfTwoRanksPerSlot) {
  const uint64_t gib = uint64_t{1} << 30;

  EXPECT_EQ(FolderLimitsFor(8, gib / 16).bytes, 4 * gib);
  EXPECT_EQ(FolderLimitsFor(8, gib).bytes, 16 * gib);
  EXPECT_EQ(FolderLimitsFor(8, gib).folders, 200u);
}

TEST(TrainerIds, FolderNames_ReadBack) {
  TrainerId id = {JobId("abc-12"), Generation(12), 345};

  EXPECT_EQ(FolderName(id), "abc-12.g12.r345");
  EXPECT_EQ(*ParseFolderName(FolderName(id)), id);
  for (const char* bad : {"", "a", "a.g1", "a.g1.r", "a.1.2", "../x.g1.r1", "a.g1.r1.x", "a.g-1.r1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseFolderName(bad).status())) << bad;
  }
}

TEST(Inventory, OfThisHost_IsPlausible) {
  v1::Inventory inventory = ReadInventory("127.0.0.1:7070");

  EXPECT_GE(inventory.cores(), 1);
  EXPECT_GT(inventory.memory_bytes(), 100 << 20);
  EXPECT_THAT(inventory.kernel(), HasSubstr("Linux"));
  EXPECT_EQ(inventory.data_address(), "127.0.0.1");
  EXPECT_NE(inventory.gpus().empty(), inventory.gpu_note().empty());
}

TEST(Inventory, CgroupCores_AreLimitedByEveryFolderAndAlsoInAContainerWithThePathOfItsHost) {
  const TemporaryFolder host;
  const TemporaryFolder container;
  const auto write = [](const std::string& path, const std::string& text) {
    EXPECT_EQ(MakeFolders(std::filesystem::path(path).parent_path().string()), absl::OkStatus());
    std::ofstream(path) << text;
  };
  write(host / "proc/self/cgroup", "0::/a.slice/b.service\n");
  write(host / "sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
  write(host / "sys/fs/cgroup/a.slice/cpu.max", "250000 100000\n");
  write(container / "proc/self/cgroup", "4:cpu,cpuacct:/kubepods/pod1/c2\n");
  write(container / "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  write(container / "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");

  EXPECT_DOUBLE_EQ(CgroupCores(host.path()), 2.5);
  EXPECT_DOUBLE_EQ(CgroupCores(container.path()), 4);
}

TEST(Inventory, CudaVisibleDevices_SelectsAndOrdersTheGpus) {
  v1::Inventory inventory;
  for (const char* uuid : {"GPU-aa10", "GPU-ab20", "GPU-ac30"}) {
    v1::Gpu* gpu = inventory.add_gpus();
    gpu->set_index(static_cast<uint32_t>(inventory.gpus_size() - 1));
    gpu->set_uuid(uuid);
  }
  const auto indexes = [&inventory](const char* visible) {
    std::vector<uint32_t> found;
    for (const v1::Gpu& gpu : VisibleGpus(inventory.gpus(), visible)) found.push_back(gpu.index());
    return found;
  };

  EXPECT_THAT(indexes("2,0"), ElementsAre(2u, 0u));
  EXPECT_THAT(indexes("GPU-ab, 0"), ElementsAre(1u, 0u));
  EXPECT_THAT(indexes("0,x,1"), ElementsAre(0u));
  EXPECT_THAT(indexes("1,GPU-ab"), ElementsAre(1u)) << "a GPU counts once";
  EXPECT_THAT(indexes("MIG-1234"), ElementsAre(0u, 1u, 2u)) << "parts of GPUs are not listed";
  for (const char* none : {"", "3", "-1", "NoDevFiles", "GPU-", "GPU-ad"}) {
    EXPECT_TRUE(indexes(none).empty()) << none;
  }
}

TEST(Inventory, InterfaceAddress_IsThatOfTheInterface) {
  EXPECT_EQ(InterfaceAddress("lo").value_or("none"), "127.0.0.1");
  EXPECT_THAT(std::string(InterfaceAddress("nope0").status().message()), HasSubstr("interfaces of this host: "));
}

TEST(Inventory, DataAddress_IsThatOfTheDefaultRouteIfTheNameOfTheCoordinatorLeadsToLoopback) {
  // Written like this, 127.0.0.1 is not recognized as loopback before it is resolved, like a name in /etc/hosts.
  EXPECT_EQ(DataAddress("0x7f000001:7070"), DataAddress("192.0.2.1:7070"));
  EXPECT_EQ(DataAddress("127.0.1.1:7070"), "127.0.0.1");
}

TEST(Inventory, DataAddress_OfANameThatCannotBeResolvedIsLoopback) {
  EXPECT_EQ(DataAddress("[::1]:7070"), "127.0.0.1");
  EXPECT_EQ(DataAddress("no-such-host.invalid:7070"), "127.0.0.1");
}

}  // namespace
}  // namespace trainyard::agent
