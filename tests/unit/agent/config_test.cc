// The configuration of the worker daemon: defaults, file, flags and refusals; and the environment of a trainer.
#include "worker/agent/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "trainyard/v1/job.pb.h"
#include "worker/agent/environment.h"
#include "worker/agent/machine_claim.h"

namespace trainyard::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

absl::StatusOr<Config> Read(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "trainyard-worker");
  return ReadConfig(static_cast<int>(arguments.size()), arguments.data());
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) { std::ofstream(path_) << text; }
  const char* path() const { return path_.c_str(); }

 private:
  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "worker.yaml";
};

TEST(WorkerConfig, Defaults_AreThoseOfTheSchema) {
  setenv("XDG_STATE_HOME", "/tmp/state-home", 1);

  absl::StatusOr<Config> config = Read({"--coordinator", "127.0.0.1:7070", "--name", "h1"});

  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_EQ(config->slots, 0);
  EXPECT_EQ(config->state, "/tmp/state-home/trainyard/127.0.0.1_7070-h1");
  EXPECT_EQ(config->log_bytes_per_rank, 64 << 20);
  EXPECT_EQ(config->logging.level, "info");
  EXPECT_FALSE(config->logging.json);
  EXPECT_FALSE(config->stop_trainers);
  EXPECT_FALSE(config->adopt_cluster);
  EXPECT_EQ(config->metrics, "127.0.0.1:7072");
  EXPECT_EQ(config->health, "127.0.0.1:7073");
  EXPECT_TRUE(config->metrics_may_use_free_port && config->health_may_use_free_port)
      << "the user has not chosen the ports";
  EXPECT_TRUE(config->labels.empty());
}

TEST(WorkerConfig, DefaultState_IsNotInAFolderOfAnotherUser) {
  const TemporaryFolder state;
  setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  EXPECT_EQ(DefaultState("127.0.0.1:7070", "h1").path, state / "trainyard/127.0.0.1_7070-h1");
  EXPECT_EQ(DefaultState("127.0.0.1:7070", "h1").own_root, "");
  if (chown(state.path().c_str(), 65533, 65533) != 0) return;  // only root can change the owner of a folder

  // As in a daemon that root starts with `sudo -E`.
  EXPECT_THAT(DefaultState("127.0.0.1:7070", "h1").path, Not(StartsWith(state.path())));
}

TEST(WorkerConfig, Labels_ComeFromTheFileUnlessFlagsGiveThem) {
  ConfigFile file("coordinator: 127.0.0.1:1\nlabels: [rack=r1, zone=a]\nmetrics: 127.0.0.1:0\n");

  absl::StatusOr<Config> from_file = Read({"--config", file.path()});
  absl::StatusOr<Config> from_flags =
      Read({"--config", file.path(), "--label", "rack=r2", "--label", "switch=s1", "--metrics", "", "--health", ""});

  ASSERT_EQ(from_file.status(), absl::OkStatus());
  EXPECT_THAT(from_file->labels, ElementsAre(Pair("rack", "r1"), Pair("zone", "a")));
  EXPECT_EQ(from_file->metrics, "127.0.0.1:0");
  EXPECT_FALSE(from_file->metrics_may_use_free_port);
  EXPECT_TRUE(from_file->health_may_use_free_port);
  ASSERT_EQ(from_flags.status(), absl::OkStatus());
  EXPECT_THAT(from_flags->labels, ElementsAre(Pair("rack", "r2"), Pair("switch", "s1")));
  EXPECT_EQ(from_flags->metrics, "");
  EXPECT_EQ(from_flags->health, "");
  EXPECT_FALSE(from_flags->health_may_use_free_port);
}

TEST(WorkerConfig, TokenFile_ComesFromTheFileOrTheFlagAndIsEmptyByDefault) {
  ConfigFile file("coordinator: 127.0.0.1:1\ntoken_file: /etc/trainyard/token\n");

  EXPECT_EQ(Read({"--coordinator", "127.0.0.1:1"})->token_file, "");
  EXPECT_EQ(Read({"--config", file.path()})->token_file, "/etc/trainyard/token");
  EXPECT_EQ(Read({"--config", file.path(), "--token-file", "/other"})->token_file, "/other");
}

TEST(WorkerConfig, Flags_OverrideTheFile) {
  ConfigFile file("coordinator: 127.0.0.1:1\nslots: 2\nname: file\nstate: /tmp/a\nlog: {format: json, level: error}\n");

  absl::StatusOr<Config> config =
      Read({"--config", file.path(), "--coordinator", "localhost:2", "--slots", "3", "--log-level", "debug"});

  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_EQ(config->coordinator, "localhost:2");
  EXPECT_EQ(config->slots, 3);
  EXPECT_EQ(config->name, "file");
  EXPECT_EQ(config->state, "/tmp/a");
  EXPECT_TRUE(config->logging.json);
  EXPECT_EQ(config->logging.level, "debug");
}

TEST(WorkerConfig, ShippedFile_IsValid) {
  absl::StatusOr<Config> config = Read({"--config", "configs/worker.yaml"});

  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_EQ(config->slots, 2);
}

struct BadCase {
  const char* name;
  std::vector<const char*> arguments;
  std::vector<const char*> expected;
};

class BadConfigTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadConfigTest, IsRefusedWithASentenceForEachProblem) {
  absl::StatusOr<Config> config = Read(GetParam().arguments);

  ASSERT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
  for (const char* text : GetParam().expected) EXPECT_THAT(std::string(config.status().message()), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfigTest,
    ::testing::Values(
        BadCase{"nothing", {}, {"coordinator: is required"}},
        BadCase{"no_port", {"--coordinator", "host"}, {"expected host:port", "'host'"}},
        BadCase{"port_too_high", {"--coordinator", "127.0.0.1:70000"}, {"1 to 65535"}},
        BadCase{"bare_ipv6", {"--coordinator", "::1:7070"}, {"expected host:port"}},
        BadCase{
            "public", {"--coordinator", "10.0.0.1:7070"}, {"10.0.0.1:7070 is not on loopback", "--allow-plaintext"}},
        BadCase{"slots", {"--coordinator", "127.0.0.1:1", "--slots", "0"}, {"slots", "1 to 1024"}},
        BadCase{"slots_word", {"--coordinator", "127.0.0.1:1", "--slots", "many"}, {"slots", "'many'"}},
        BadCase{"log_level", {"--coordinator", "127.0.0.1:1", "--log-level", "loud"}, {"debug, info, warning, error"}},
        BadCase{"name", {"--coordinator", "127.0.0.1:1", "--name", "a b"}, {"name:", "'a b'"}},
        BadCase{"label", {"--coordinator", "127.0.0.1:1", "--label", "rack"}, {"expected key=value", "'rack'"}},
        BadCase{"label_twice",
                {"--coordinator", "127.0.0.1:1", "--label", "rack=a", "--label", "rack=b"},
                {"'rack' is given twice"}},
        BadCase{"metrics", {"--coordinator", "127.0.0.1:1", "--metrics", "7072"}, {"metrics: expected host:port"}},
        BadCase{"public_health",
                {"--coordinator", "127.0.0.1:1", "--health", "0.0.0.0:7073"},
                {"health: 0.0.0.0:7073 is not on loopback"}},
        BadCase{"unknown_flag", {"--coordinator", "127.0.0.1:1", "--slot", "1"}, {"--slot", "--help"}},
        BadCase{"closed_descriptor", {"--coordinator", "127.0.0.1:1", "--lifeline-fd", "987"}, {"987 is not open"}},
        BadCase{"no_such_file", {"--config", "/no/such/file.yaml"}, {"/no/such/file.yaml"}},
        BadCase{"all_at_once",
                {"--slots", "x", "--log-format", "xml", "--name", "/"},
                {"coordinator: is required", "slots", "log.format", "name:"}}),
    [](const auto& info) { return info.param.name; });

TEST(WorkerConfig, UnknownKeyInTheFile_IsRefusedWithItsPositionAndTheNearestName) {
  ConfigFile file("coordinator: 127.0.0.1:1\nslot: 2\n");

  absl::StatusOr<Config> config = Read({"--config", file.path()});

  EXPECT_THAT(std::string(config.status().message()), AllOf(HasSubstr(":2:"), HasSubstr("slots")));
}

TEST(WorkerConfig, AllowPlaintext_AllowsEveryAddress) {
  EXPECT_EQ(Read({"--coordinator", "10.0.0.1:7070", "--allow-plaintext"}).status(), absl::OkStatus());
  EXPECT_EQ(Read({"--coordinator", "[::1]:7070"}).status(), absl::OkStatus());
  EXPECT_EQ(Read({"--coordinator", "unix:/run/trainyard/socket"}).status(), absl::OkStatus());
}

TEST(WorkerConfig, Snapshots_AreInMemoryUnlessDisabled) {
  EXPECT_EQ(Read({"--coordinator", "127.0.0.1:1"})->snapshots, "/dev/shm");
  EXPECT_EQ(Read({"--coordinator", "127.0.0.1:1", "--snapshots", ""})->snapshots, "");
  EXPECT_THAT(std::string(Read({"--coordinator", "127.0.0.1:1", "--snapshots", "shm"}).status().message()),
              HasSubstr("snapshots: expected an absolute path, or nothing, found 'shm'"));
}

TEST(WorkerConfig, Version_IsPrinted) {
  absl::StatusOr<Config> config = Read({"--version"});

  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_THAT(config->text_to_print, StartsWith("trainyard-worker "));
}

TEST(TrainerEnvironment, ContainsOnlyWhatARankNeeds) {
  v1::DesiredTrainer desired;
  desired.mutable_key()->set_rank(3);
  desired.set_world_size(8);
  desired.set_local_rank(1);
  desired.set_local_world_size(2);
  const char* const daemon_environment[] = {"HOME=/home/a",
                                            "SECRET=x",
                                            "LD_LIBRARY_PATH=/opt/lib",
                                            "CUDA_VISIBLE_DEVICES=2,3",
                                            "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                                            nullptr};

  std::vector<std::string> variables =
      TrainerEnvironment(desired, {.threads = 4, .token = "abc", .snapshots = "/m/d", .inherited = daemon_environment});

  for (const char* expected :
       {"HOME=/home/a", "LD_LIBRARY_PATH=/opt/lib", "TRAINYARD_TOKEN=abc", "OMP_NUM_THREADS=4", "MKL_NUM_THREADS=4",
        "OMP_WAIT_POLICY=PASSIVE", "RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
        "TRAINYARD_SNAPSHOTS=/m/d", "CUDA_VISIBLE_DEVICES=2,3", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}) {
    EXPECT_THAT(variables, Contains(expected));
  }
  EXPECT_THAT(variables, Contains(StartsWith("PATH=/")));
  EXPECT_THAT(variables, Not(Contains(StartsWith("SECRET="))));
  EXPECT_THAT(variables, Not(Contains(StartsWith("GOMP_SPINCOUNT="))));
}

TEST(TrainerEnvironment, NcclUsesTheInterfaceOfTheJob) {
  v1::JobSpec spec;
  v1::DesiredTrainer desired;
  EXPECT_THAT(TrainerEnvironment(desired, {.token = "a"}), Not(Contains(StartsWith("NCCL_SOCKET_IFNAME"))));

  spec.mutable_network()->set_interface("eth1");
  desired.set_spec(spec.SerializeAsString());

  const char* const daemon_environment[] = {"NCCL_SOCKET_IFNAME=eth0", nullptr};
  const std::vector<std::string> variables =
      TrainerEnvironment(desired, {.token = "a", .inherited = daemon_environment});
  EXPECT_THAT(variables, Contains("NCCL_SOCKET_IFNAME==eth1"));
  EXPECT_THAT(variables, Not(Contains("NCCL_SOCKET_IFNAME=eth0")));
}

TEST(TrainerEnvironment, ContainsWhatNcclReads) {
  const char* const daemon_environment[] = {"NCCL_IB_HCA=mlx5_0", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "SECRET=x",
                                            "MY_NCCL_DEBUG=INFO", nullptr};

  std::vector<std::string> variables = TrainerEnvironment({}, {.token = "a", .inherited = daemon_environment});

  EXPECT_THAT(variables, Contains("NCCL_IB_HCA=mlx5_0"));
  EXPECT_THAT(variables, Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_THAT(variables, Not(Contains(HasSubstr("SECRET"))));
  EXPECT_THAT(variables, Not(Contains(StartsWith("MY_NCCL"))));
}

TEST(MachineClaim, OneDaemonHoldsIt_UntilItEnds) {
  const std::string name = absl::StrCat("trainyard-test-", getpid());
  auto first = std::make_unique<MachineClaim>(name);
  EXPECT_TRUE(first->held());
  EXPECT_FALSE(MachineClaim(name).held());

  first = nullptr;

  EXPECT_TRUE(MachineClaim(name).held());
}

TEST(TrainerEnvironment, ThreadsSpinOnlyOnCoresOfTheirOwn) {
  const auto spins = Contains(StartsWith("GOMP_SPINCOUNT="));
  EXPECT_THAT(TrainerEnvironment({}, {.threads = 2, .owns_cores = true, .token = "a"}), spins);
  EXPECT_THAT(TrainerEnvironment({}, {.threads = 1, .owns_cores = true, .token = "a"}), Not(spins));
  EXPECT_THAT(TrainerEnvironment({}, {.threads = 2, .owns_cores = false, .token = "a"}), Not(spins));
}

}  // namespace
}  // namespace trainyard::agent
