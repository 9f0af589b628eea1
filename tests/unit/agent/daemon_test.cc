// The complete daemon, with real shims and fake trainers, against a coordinator in the test's process.
#include "worker/agent/daemon.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "tests/unit/agent/fake_coordinator.h"
#include "tests/unit/temporary_folder.h"
#include "worker/agent/rank_folder.h"
#include "worker/shim/process.h"

namespace trainyard::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Seen = FakeCoordinator::Seen;

v1::DesiredTrainer Desired(const std::string& job_name, uint32_t rank, uint32_t world_size, uint64_t generation = 1) {
  v1::JobSpec spec;
  spec.set_name(job_name);
  v1::DesiredTrainer desired;
  desired.mutable_key()->set_job_id("job23456");
  desired.mutable_key()->set_generation(generation);
  desired.mutable_key()->set_rank(rank);
  desired.set_world_size(world_size);
  desired.set_local_world_size(world_size);
  desired.set_local_rank(rank);
  desired.set_spec(spec.SerializeAsString());
  return desired;
}

int CountOf(const Seen& seen, v1::Fact::KindCase kind) {
  return static_cast<int>(std::count_if(seen.facts.begin(), seen.facts.end(),
                                        [&](const v1::Fact& fact) { return fact.kind_case() == kind; }));
}

v1::TrainerExited ExitOf(const Seen& seen, uint32_t rank, uint64_t generation = 1) {
  for (const v1::Fact& fact : seen.facts) {
    if (fact.has_exited() && fact.key().rank() == rank && fact.key().generation() == generation) return fact.exited();
  }
  return {};
}

constexpr int kServing = 1;
constexpr int kNotServing = 2;

// Calls grpc.health.v1.Health/Check with hand-made messages: the request has one text field, the response one number.
int HealthOf(const std::string& address, const std::string& service) {
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  std::string size(service.empty() ? 0 : 1, static_cast<char>(service.size()));
  grpc::Slice slice(service.empty() ? std::string() : absl::StrCat("\x0a", size, service));
  grpc::ByteBuffer up(&slice, 1), down;
  grpc::ClientContext context;
  grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC);
  grpc::Status status =
      grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(channel.get(), method, &context, up, &down);
  std::vector<grpc::Slice> slices;
  if (!status.ok() || !down.Dump(&slices).ok()) return -1;
  std::string bytes;
  for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes.size() == 2 && bytes[0] == 8 ? bytes[1] : -1;
}

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // The daemon expects shim and trainer in one folder.
    std::string binaries = BinaryFolder();
    programs_ = JoinPath(root_, "bin");
    std::filesystem::create_directory(programs_);
    std::filesystem::create_symlink(JoinPath(std::filesystem::path(binaries).parent_path().string(), "trainyard-shim"),
                                    JoinPath(programs_, "trainyard-shim"));
    std::filesystem::create_symlink(JoinPath(binaries, "fake_trainer"), JoinPath(programs_, "trainyard-trainer"));
  }
  void TearDown() override {
    Leave(Leaving::kKillTrainers);
    // Kills the trainers that have outlived their daemon.
    for (const TrainerId& id : ListRankFolders(ranks())) {
      absl::StatusOr<PidRecord> pids = ReadPids(JoinPath(ranks(), FolderName(id)));
      if (pids.ok() && shim::StartTime(pids->trainer.pid) == pids->trainer.start) kill(-pids->trainer.pid, SIGKILL);
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  std::string ranks() const { return JoinPath(root_, "state/ranks"); }

  void StartDaemon() {
    Config config;
    config.coordinator = coordinator_->address();
    config.slots = 4;
    config.name = "h1";
    config.state = JoinPath(root_, "state");
    config.programs = programs_;
    config.metrics = "127.0.0.1:0";
    config.health = "127.0.0.1:0";
    config.labels = {{"rack", "r1"}};
    config.snapshots = memory_.path();
    daemon_ = std::make_unique<Daemon>(config, Clock::GetRealClock());
    ASSERT_EQ(daemon_->Start(), absl::OkStatus());
  }
  int Leave(Leaving how) {
    if (daemon_ == nullptr) return -1;
    daemon_->RequestLeave(how);
    int code = daemon_->AwaitEnd();
    daemon_ = nullptr;
    return code;
  }
  // Starts two ranks, waits until both are ready, and permits their first step.
  void StartTwoRanks(const std::string& name) {
    coordinator_->Desire({Desired(name, 0, 2), Desired(name, 1, 2)});
    ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return CountOf(seen, v1::Fact::kReady) == 2; }));
    Go(name);
  }
  void Go(const std::string& name, bool stop = false) {
    std::vector<v1::DesiredTrainer> trainers = {Desired(name, 0, 2), Desired(name, 1, 2)};
    for (v1::DesiredTrainer& trainer : trainers) {
      trainer.set_go(true);
      trainer.set_stop(stop);
    }
    coordinator_->Desire(trainers);
  }
  bool AwaitExits(int count) {
    return coordinator_->Await([=](const Seen& seen) { return CountOf(seen, v1::Fact::kExited) == count; });
  }

  const TemporaryFolder temporary_;
  const TemporaryFolder memory_{"/dev/shm"};
  const std::string root_ = temporary_.path();
  std::string programs_;
  std::unique_ptr<FakeCoordinator> coordinator_ = std::make_unique<FakeCoordinator>();
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(DaemonTest, TwoRanks_ConnectTrainAndEndWithAllReportsInOrder) {
  StartDaemon();
  StartTwoRanks("steps-500");

  ASSERT_TRUE(AwaitExits(2));

  Seen seen = coordinator_->seen();
  EXPECT_EQ(ExitOf(seen, 0).cause(), v1::TrainerExited::CAUSE_EXIT);
  EXPECT_EQ(ExitOf(seen, 0).code(), 0);
  EXPECT_EQ(ExitOf(seen, 1).code(), 0);
  EXPECT_EQ(seen.steps.back(), 500);
  std::vector<v1::Fact::KindCase> kinds_of_rank_1;
  for (const v1::Fact& fact : seen.facts) {
    if (fact.key().rank() == 1) kinds_of_rank_1.push_back(fact.kind_case());
  }
  EXPECT_THAT(kinds_of_rank_1, ElementsAre(v1::Fact::kStarted, v1::Fact::kRegistered, v1::Fact::kReady,
                                           v1::Fact::kFinished, v1::Fact::kExited));
  EXPECT_THAT(ExitOf(seen, 1).last_lines(), Contains("rank 1 of 2: steps-500"));
}

TEST_F(DaemonTest, ExitCode_ReachesTheCoordinator) {
  StartDaemon();

  coordinator_->Desire({Desired("exit-5", 0, 1)});

  ASSERT_TRUE(AwaitExits(1));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).code(), 5);
}

TEST_F(DaemonTest, KilledTrainer_IsReportedWithItsSignal) {
  StartDaemon();
  StartTwoRanks("endless");
  pid_t pid = 0;
  for (const v1::Fact& fact : coordinator_->seen().facts) {
    if (fact.has_started() && fact.key().rank() == 1) pid = static_cast<pid_t>(fact.started().pid());
  }

  kill(pid, SIGKILL);

  ASSERT_TRUE(AwaitExits(1));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 1).cause(), v1::TrainerExited::CAUSE_SIGNAL);
  EXPECT_EQ(ExitOf(coordinator_->seen(), 1).signal(), SIGKILL);
}

TEST_F(DaemonTest, KilledShim_IsReportedAsLostAndItsTrainerIsKilled) {
  StartDaemon();
  StartTwoRanks("endless");
  PidRecord pids = *ReadPids(JoinPath(ranks(), "job23456.g1.r0"));

  kill(pids.shim.pid, SIGKILL);

  ASSERT_TRUE(AwaitExits(1));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).cause(), v1::TrainerExited::CAUSE_LOST);
  EXPECT_NE(shim::StartTime(pids.trainer.pid), pids.trainer.start);
}

TEST_F(DaemonTest, StopInTheDesiredState_LetsTheRanksExitOnTheirOwn) {
  StartDaemon();
  StartTwoRanks("endless");
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.steps.size() > 3; }));

  Go("endless", /*stop=*/true);

  ASSERT_TRUE(AwaitExits(2));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).cause(), v1::TrainerExited::CAUSE_EXIT);
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).code(), 0);
}

TEST_F(DaemonTest, EmptyDesiredState_KillsTrainersAndReportsTheRevisionAfterTheExits) {
  StartDaemon();
  StartTwoRanks("endless");

  coordinator_->Desire({});

  ASSERT_TRUE(AwaitExits(2));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).cause(), v1::TrainerExited::CAUSE_STOPPED);
  EXPECT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.applied_revision == 3; }));
}

TEST_F(DaemonTest, RankThatWaitsForAValue_IsReleasedWhenItsGenerationEnds) {
  StartDaemon();
  // The second rank is never started.
  coordinator_->Desire({Desired("endless", 0, 2)});
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.values.contains("rank/0"); }));

  coordinator_->Desire({});

  ASSERT_TRUE(AwaitExits(1));
}

TEST_F(DaemonTest, RestartedCoordinator_MissesNoStepAndNoFact) {
  StartDaemon();
  StartTwoRanks("endless");
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.steps.size() > 3; }));
  int port = coordinator_->port();

  coordinator_ = nullptr;
  coordinator_ = std::make_unique<FakeCoordinator>(port);
  Go("endless", /*stop=*/true);

  ASSERT_TRUE(AwaitExits(2));
  Seen seen = coordinator_->seen();
  ASSERT_THAT(seen.hellos, SizeIs(1));
  EXPECT_EQ(seen.hellos[0].trainers_size(), 2);
  EXPECT_EQ(seen.hellos[0].cluster_id(), "fake");
  // The steps begin with the first, because what the earlier coordinator received is sent again.
  std::vector<uint64_t> all(seen.steps.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
  EXPECT_EQ(seen.steps, all);
  EXPECT_EQ(CountOf(seen, v1::Fact::kFinished), 2);
}

TEST_F(DaemonTest, NextIncarnationOfTheDaemon_AdoptsItsTrainers) {
  StartDaemon();
  coordinator_->Desire({Desired("steps-3", 0, 2), Desired("steps-3", 1, 2)});
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return CountOf(seen, v1::Fact::kReady) == 2; }));
  EXPECT_EQ(Leave(Leaving::kKeepTrainers), 0);

  StartDaemon();

  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.hellos.size() == 2; }));
  Seen seen = coordinator_->seen();
  EXPECT_EQ(seen.hellos[1].trainers_size(), 2);
  EXPECT_NE(seen.hellos[0].incarnation(), seen.hellos[1].incarnation());
  // The fake trainer exits when its link breaks; the new incarnation sees the end of a process that it never started.
  ASSERT_TRUE(AwaitExits(2));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).code(), 3);
}

TEST_F(DaemonTest, ExitWithoutADaemon_IsReportedOnceByTheNextIncarnation) {
  StartDaemon();
  StartTwoRanks("endless");
  EXPECT_EQ(Leave(Leaving::kKeepTrainers), 0);
  for (const char* folder : {"job23456.g1.r0", "job23456.g1.r1"}) {
    for (absl::Time end = absl::Now() + absl::Seconds(30);
         absl::Now() < end && !ReadExit(JoinPath(ranks(), folder)).ok();) {
      absl::SleepFor(absl::Milliseconds(2));
    }
  }

  StartDaemon();
  ASSERT_TRUE(AwaitExits(2));
  ASSERT_TRUE(coordinator_->Await([&](const Seen&) { return IsFolderReported(JoinPath(ranks(), "job23456.g1.r1")); }));
  EXPECT_EQ(Leave(Leaving::kKeepTrainers), 0);
  StartDaemon();
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.hellos.size() == 3 && seen.heartbeats > 3; }));

  EXPECT_EQ(CountOf(coordinator_->seen(), v1::Fact::kExited), 2);
  EXPECT_EQ(coordinator_->seen().hellos[2].trainers_size(), 0);
}

TEST_F(DaemonTest, FactsThatNoCoordinatorReceived_AreSentByTheNextIncarnationUnderTheSameNumbers) {
  StartDaemon();
  coordinator_->Acknowledge(false);
  coordinator_->Desire({Desired("exit-5", 0, 1)});
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.exits_received > 0; }));
  EXPECT_EQ(Leave(Leaving::kKeepTrainers), 0);
  std::string outbox_id = coordinator_->seen().hellos[0].outbox_id();

  coordinator_->Acknowledge(true);
  StartDaemon();

  ASSERT_TRUE(AwaitExits(1));
  EXPECT_EQ(coordinator_->seen().hellos[1].outbox_id(), outbox_id);
  EXPECT_NE(outbox_id, "");
  EXPECT_EQ(coordinator_->seen().facts[0].sequence(), 1);
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).code(), 5);
}

TEST_F(DaemonTest, Health_IsServed_MetricsHaveAnAddress_AndADefaultPortInUseIsReplaced) {
  StartDaemon();
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.heartbeats > 0; }));
  EXPECT_EQ(HealthOf(daemon_->health_address(), ""), kServing);
  EXPECT_EQ(HealthOf(daemon_->health_address(), "trainyard.v1.AgentService"), kServing);
  EXPECT_THAT(daemon_->metrics_address(), HasSubstr("127.0.0.1:"));

  absl::Status chosen = HealthServer::Start(daemon_->health_address(), /*may_use_free_port=*/false).status();
  EXPECT_TRUE(absl::IsUnavailable(chosen)) << chosen;
  EXPECT_THAT(std::string(chosen.message()), HasSubstr(absl::StrCat("port ", daemon_->health_address(), " is in use")));
  EXPECT_TRUE(absl::IsInvalidArgument(HealthServer::Start("192.0.2.1:0", /*may_use_free_port=*/false).status()));
  auto second = HealthServer::Start(daemon_->health_address(), /*may_use_free_port=*/true);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*second)->address(), daemon_->health_address());
  EXPECT_THAT((*second)->warning(), HasSubstr("is in use; serving on"));
  EXPECT_EQ(HealthOf((*second)->address(), "trainyard.v1.AgentService"), kNotServing);
  coordinator_ = nullptr;

  for (absl::Time end = absl::Now() + absl::Seconds(30);
       absl::Now() < end && HealthOf(daemon_->health_address(), "trainyard.v1.AgentService") == kServing;) {
  }
  EXPECT_EQ(HealthOf(daemon_->health_address(), "trainyard.v1.AgentService"), kNotServing);
  EXPECT_EQ(HealthOf(daemon_->health_address(), ""), kServing);
}

TEST_F(DaemonTest, Heartbeat_ContainsTimeAndDisk_AndHello_ContainsTheLabels) {
  StartDaemon();

  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.heartbeats > 0; }));

  Seen seen = coordinator_->seen();
  EXPECT_EQ(seen.hellos[0].inventory().labels().at("rack"), "r1");
  EXPECT_GT(seen.hellos[0].inventory().disk_free_bytes(), 0);
  EXPECT_GT(seen.last_heartbeat.disk_free_bytes(), 0);
  EXPECT_GT(seen.last_heartbeat.time_unix_ms(), 1'600'000'000'000);
}

TEST_F(DaemonTest, RemovedSocket_IsRecreatedBeforeATrainerNeedsIt) {
  StartDaemon();
  StartTwoRanks("endless");
  std::filesystem::remove(daemon_->socket());

  coordinator_->Desire({Desired("exit-5", 0, 1, /*generation=*/2)});

  ASSERT_TRUE(AwaitExits(3));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0, 2).code(), 5);
  EXPECT_TRUE(FileExists(daemon_->socket()));
}

TEST_F(DaemonTest, RemovedStateFolder_IsRecreatedAndRunningTrainersContinueAndAreReported) {
  StartDaemon();
  StartTwoRanks("endless");
  std::filesystem::remove_all(JoinPath(root_, "state"));

  ASSERT_TRUE(coordinator_->Await([&](const Seen&) { return FileExists(ranks()); }));
  Go("endless", /*stop=*/true);
  ASSERT_TRUE(AwaitExits(2));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).cause(), v1::TrainerExited::CAUSE_EXIT)
      << "the shim must recreate the rank folder to write the exit record";
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).code(), 0);
  coordinator_->Desire({Desired("exit-5", 0, 1, /*generation=*/2)});
  ASSERT_TRUE(AwaitExits(3));

  EXPECT_EQ(ExitOf(coordinator_->seen(), 0, 2).code(), 5);
  EXPECT_EQ(coordinator_->seen().last_heartbeat.trouble(), "");
  EXPECT_TRUE(FileExists(JoinPath(root_, "state/cluster")));
  EXPECT_TRUE(FileExists(JoinPath(root_, "state/outbox")));
}

TEST_F(DaemonTest, StateFolderThatCannotBeRecreated_IsReportedUntilItCanBe_AndFailedStartsAreTemporary) {
  StartDaemon();
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.heartbeats > 0; }));
  const std::string state = JoinPath(root_, "state");
  std::filesystem::remove_all(state);
  ASSERT_TRUE(WriteFileAtomically(state, "a file in its place").ok());

  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return !seen.last_heartbeat.trouble().empty(); }));
  EXPECT_THAT(coordinator_->seen().last_heartbeat.trouble(), HasSubstr(state));
  EXPECT_EQ(HealthOf(daemon_->health_address(), ""), kNotServing);
  EXPECT_EQ(HealthOf(daemon_->health_address(), "trainyard.v1.AgentService"), kNotServing);
  coordinator_->Desire({Desired("exit-5", 0, 1)});
  ASSERT_TRUE(AwaitExits(1));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0).cause(), v1::TrainerExited::CAUSE_START_FAILED);
  EXPECT_TRUE(ExitOf(coordinator_->seen(), 0).may_pass());
  EXPECT_THAT(ExitOf(coordinator_->seen(), 0).message(), HasSubstr(state));

  std::filesystem::remove(state);
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.last_heartbeat.trouble().empty(); }));
  coordinator_->Desire({Desired("exit-5", 0, 1, /*generation=*/2)});
  ASSERT_TRUE(AwaitExits(2));
  EXPECT_EQ(ExitOf(coordinator_->seen(), 0, 2).code(), 5);
  EXPECT_EQ(HealthOf(daemon_->health_address(), ""), kServing);
}

TEST_F(DaemonTest, DaemonThatStartsNoTrainer_LeavesNoFolderInMemory) {
  StartDaemon();
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.heartbeats > 0; }));

  EXPECT_TRUE(std::filesystem::is_empty(memory_.path()));
  coordinator_->Desire({Desired("exit-5", 0, 1)});
  ASSERT_TRUE(AwaitExits(1));
  EXPECT_FALSE(std::filesystem::is_empty(memory_.path()));
}

TEST_F(DaemonTest, ValuesUnderWayWhenTheCoordinatorIsKilled_ArePutAgain) {
  StartDaemon();
  coordinator_->HoldValues(true);
  coordinator_->Desire({Desired("steps-3", 0, 2), Desired("steps-3", 1, 2)});
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.values.size() == 2; }));
  EXPECT_EQ(CountOf(coordinator_->seen(), v1::Fact::kReady), 0);
  int port = coordinator_->port();

  coordinator_ = nullptr;
  coordinator_ = std::make_unique<FakeCoordinator>(port);
  coordinator_->Desire({Desired("steps-3", 0, 2), Desired("steps-3", 1, 2)});

  // Only the values are checked, because the fake trainer exits after a failed put. A real trainer retries.
  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.values.size() == 2; }));
}

TEST_F(DaemonTest, EndOfTheLifeline_LeavesNoTrainerRunning) {
  StartDaemon();
  StartTwoRanks("endless");
  PidRecord pids = *ReadPids(JoinPath(ranks(), "job23456.g1.r0"));

  EXPECT_EQ(Leave(Leaving::kKillTrainers), 0);

  EXPECT_NE(shim::StartTime(pids.trainer.pid), pids.trainer.start);
}

TEST_F(DaemonTest, SecondDaemonOnAStateFolder_IsRefusedWithTheFoldersPath) {
  StartDaemon();
  Config config;
  config.coordinator = coordinator_->address();
  config.name = "h2";
  config.state = JoinPath(root_, "state");

  Daemon second(config, Clock::GetRealClock());
  absl::Status status = second.Start();

  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(config.state));
}

TEST_F(DaemonTest, LogRequest_SendsStoredOutputAndEnds) {
  StartDaemon();
  coordinator_->Desire({Desired("exit-5", 0, 1)});
  ASSERT_TRUE(AwaitExits(1));
  v1::LogRequest request;
  request.set_request_id("r1");
  request.set_job_id("job23456");
  request.add_ranks(0);

  coordinator_->Desire({}, {request});

  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.logs_ended.contains("r1"); }));
  EXPECT_THAT(coordinator_->seen().lines, ElementsAre("1/0:rank 0 of 1: exit-5"));
}

TEST_F(DaemonTest, FollowedLogs_IncludeTheNextGeneration) {
  StartDaemon();
  v1::LogRequest request;
  request.set_request_id("r1");
  request.set_job_id("job23456");
  request.add_ranks(0);
  request.set_follow(true);
  coordinator_->Desire({Desired("exit-5", 0, 1)}, {request});
  ASSERT_TRUE(AwaitExits(1));

  coordinator_->Desire({Desired("exit-6", 0, 1, /*generation=*/2)}, {request});
  ASSERT_TRUE(AwaitExits(2));
  request.set_follow(false);
  coordinator_->Desire({}, {request});

  ASSERT_TRUE(coordinator_->Await([](const Seen& seen) { return seen.logs_ended.contains("r1"); }));
  EXPECT_THAT(coordinator_->seen().lines, ElementsAre("1/0:rank 0 of 1: exit-5", "2/0:rank 0 of 1: exit-6"));
}

}  // namespace
}  // namespace trainyard::agent
