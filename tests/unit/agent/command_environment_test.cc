// The environment and the program of a command, the port of its rank 0, and the error file that a command leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include "command_job.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/command.h"
#include "worker/agent/free_port.h"

namespace trainyard::agent {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::vector<std::string> VariablesOf(const v1::DesiredTrainer& desired, std::vector<const char*> inherited) {
  inherited.push_back(nullptr);
  auto launch = CommandLaunch(
      desired,
      {.master = "10.0.0.1:15001", .error_file = "/ranks/error.json", .log_bytes = 1, .inherited = inherited.data()});
  EXPECT_TRUE(launch.ok()) << launch.status();
  return launch->variables;
}

TEST(CommandEnvironment, HasTheLinkOfTheDaemon_WhichTheJobCannotChange) {
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->add_env("TRAINYARD_TOKEN=guess");

  auto launch = CommandLaunch(DesiredCommand(1, spec), {.master = "h:1", .link = "/run/link", .token = "secret"});

  ASSERT_TRUE(launch.ok()) << launch.status();
  for (const char* expected : {"TRAINYARD_LINK=/run/link", "TRAINYARD_TOKEN=secret", "TRAINYARD_JOB_ID=job23456",
                               "TRAINYARD_GENERATION=1", "TRAINYARD_RANK=1"}) {
    EXPECT_THAT(launch->variables, Contains(expected));
  }
}

TEST(CommandEnvironment, HasTheFolderForCheckpoints_AndTheNewestCheckpoint) {
  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->set_checkpoint_dir("/runs/c");
  v1::DesiredTrainer desired = DesiredCommand(1, spec);
  EXPECT_THAT(VariablesOf(desired, {}), Not(Contains(HasSubstr("TRAINYARD_LAST_CHECKPOINT"))));
  desired.mutable_restart_from()->set_path("/runs/c/step-7");
  desired.mutable_restart_from()->set_step(7);

  auto launch = CommandLaunch(desired, {.master = "h:1", .link = "/run/link", .token = "secret"});

  ASSERT_TRUE(launch.ok()) << launch.status();
  for (const char* expected : {"TRAINYARD_CHECKPOINT_DIR=/runs/c", "TRAINYARD_LAST_CHECKPOINT=/runs/c/step-7",
                               "TRAINYARD_LAST_CHECKPOINT_STEP=7"}) {
    EXPECT_THAT(launch->variables, Contains(expected));
  }
}

TEST(CommandEnvironment, HasTheVariablesOfTorchrun) {
  v1::DesiredTrainer desired = DesiredCommand(1);
  desired.set_world_size(4);
  desired.set_group_rank(2);
  desired.set_group_world_size(3);
  desired.set_restarts(2);

  const std::vector<std::string> variables = VariablesOf(desired, {"RANK=9", "HOME=/home/ada", "TRAINYARD_TOKEN=x"});

  for (const char* expected :
       {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=2", "GROUP_WORLD_SIZE=3",
        "ROLE_RANK=1", "ROLE_WORLD_SIZE=4", "ROLE_NAME=default", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=15001",
        "TORCHELASTIC_RESTART_COUNT=2", "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_RUN_ID=job23456",
        "TORCHELASTIC_USE_AGENT_STORE=False", "TORCHELASTIC_ERROR_FILE=/ranks/error.json", "OMP_NUM_THREADS=1",
        "HOME=/home/ada"}) {
    EXPECT_THAT(variables, Contains(expected));
  }
  EXPECT_THAT(variables, Not(Contains("TRAINYARD_TOKEN=x"))) << "the daemon's own token is not passed on";
  EXPECT_THAT(variables, Not(Contains("RANK=9")));
}

TEST(CommandEnvironment, RanksOnSeveralHosts_UseTheInterfaceOfTheDataAddress_UnlessTheJobOrTheEnvironmentNamesOne) {
  const auto variables = [](const v1::DesiredTrainer& desired, const std::vector<const char*>& inherited) {
    std::vector<const char*> environment = inherited;
    environment.push_back(nullptr);
    return CommandLaunch(desired, {.master = "h:1", .interface = "eth3", .inherited = environment.data()})->variables;
  };
  v1::JobSpec spec = CommandSpec();
  v1::DesiredTrainer desired = DesiredCommand(1, spec);
  EXPECT_THAT(variables(desired, {}), Not(Contains(HasSubstr("SOCKET_IFNAME")))) << "all ranks are on one host";

  desired.set_group_world_size(2);
  EXPECT_THAT(variables(desired, {}), Contains("GLOO_SOCKET_IFNAME=eth3"));
  EXPECT_THAT(variables(desired, {}), Not(Contains(HasSubstr("NCCL_SOCKET_IFNAME"))));
  EXPECT_THAT(variables(desired, {"GLOO_SOCKET_IFNAME=ib0"}), Contains("GLOO_SOCKET_IFNAME=ib0"));

  spec.mutable_network()->set_interface("eth3");
  desired.set_spec(spec.SerializeAsString());
  // NCCL takes a name for a prefix, unless '=' is before it.
  EXPECT_THAT(variables(desired, {"NCCL_SOCKET_IFNAME=ib0"}), Contains("NCCL_SOCKET_IFNAME==eth3"));
}

TEST(CommandEnvironment, OmpNumThreads_IsThatOfTheJob_ElseOfTheDaemon_ElseOneIfRanksShareTheHost) {
  v1::DesiredTrainer alone = DesiredCommand(0);
  alone.set_local_world_size(1);
  EXPECT_THAT(VariablesOf(alone, {}), Not(Contains("OMP_NUM_THREADS=1")));
  EXPECT_THAT(VariablesOf(DesiredCommand(0), {"OMP_NUM_THREADS=5"}), Contains("OMP_NUM_THREADS=5"));

  v1::JobSpec spec = CommandSpec();
  spec.mutable_resources()->set_threads_per_rank(3);
  EXPECT_THAT(VariablesOf(DesiredCommand(0, spec), {"OMP_NUM_THREADS=5"}), Contains("OMP_NUM_THREADS=3"));
  spec.mutable_command()->add_env("OMP_NUM_THREADS=7");
  EXPECT_THAT(VariablesOf(DesiredCommand(0, spec), {}), Contains("OMP_NUM_THREADS=7"));
}

TEST(CommandLaunches, FindTheProgramInPath) {
  auto launch = CommandLaunch(DesiredCommand(0), {.master = "h:1"});
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(launch->program, HasSubstr("/sh"));
  EXPECT_EQ(launch->workdir, "/");

  v1::JobSpec spec = CommandSpec();
  spec.mutable_command()->set_argv(0, "bin/sh");
  EXPECT_EQ(CommandLaunch(DesiredCommand(0, spec), {.master = "h:1"})->program, "/bin/sh");
  spec.mutable_command()->set_argv(0, "no-such-program");
  EXPECT_THAT(std::string(CommandLaunch(DesiredCommand(0, spec), {.master = "h:1"}).status().message()),
              HasSubstr("cannot start 'no-such-program': no folder in PATH"));
}

TEST(ErrorFiles, GiveTheFirstLineOfTheException) {
  const TemporaryFolder folder;
  const std::string path = folder / kErrorFile;
  EXPECT_EQ(ReadErrorFile(path), "");
  std::ofstream(path) << R"({"message": {"message": "ValueError: no\ndata", "extraInfo": {"py_callstack": "..."}}})";
  EXPECT_EQ(ReadErrorFile(path), "ValueError: no");
  std::ofstream(path) << R"({"message": "plain"})";
  EXPECT_EQ(ReadErrorFile(path), "plain");
  for (const char* other : {"", "{", "[]", "{}", R"({"message": 5})", R"({"message": {"message": []}})"}) {
    std::ofstream(path) << other;
    EXPECT_EQ(ReadErrorFile(path), "") << other;
  }
}

TEST(ErrorFiles, AFifo_DoesNotBlock) {
  const TemporaryFolder folder;
  const std::string path = folder / kErrorFile;
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);

  EXPECT_EQ(ReadErrorFile(path), "");
}

TEST(PortChoosers, ReturnDifferentFreePorts) {
  PortChooser chooser;
  std::set<uint16_t> ports;

  for (int i = 0; i < 100; ++i) ports.insert(chooser.Choose().value());

  EXPECT_THAT(ports, SizeIs(100));
  EXPECT_GE(*ports.begin(), 15000);
}

}  // namespace
}  // namespace trainyard::agent
