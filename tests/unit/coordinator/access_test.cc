// Access control: a complete coordinator, and callers with and without the required token.
#include "coordinator/rpc/access.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/dial.h"
#include "common/tokens.h"
#include "coordinator/coordinator.h"
#include "tests/unit/temporary_folder.h"
#include "trainyard/v1/agent.grpc.pb.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    setenv("XDG_STATE_HOME", folder_.path().c_str(), 1);
    options_.listen = "127.0.0.1:0";
    options_.state = folder_ / "state";
    options_.lease_ms = 3'000;
    options_.finished_jobs = 100;
  }

  void Start() {
    auto started = Coordinator::Start(options_, Clock::GetRealClock(), [](const absl::Status&) { std::abort(); });
    ASSERT_TRUE(started.ok()) << started.status();
    coordinator_ = *std::move(started);
  }
  absl::StatusOr<CoordinatorChannel> Dial(const std::string& token_file = "") {
    return DialCoordinator({.address = coordinator_->address(), .token_file = token_file}, grpc::ChannelArguments());
  }
  // Calls any method, including streaming ones, and returns its status.
  grpc::Status Call(const CoordinatorChannel& dialed, const std::string& method) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    dialed.Authorize(context);
    grpc::ByteBuffer up, down;
    grpc::Slice nothing;
    up = grpc::ByteBuffer(&nothing, 1);
    grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(dialed.channel.get(), rpc, &context,
                                                                                 up, &down);
  }
  grpc::Status GetServerInfo(const CoordinatorChannel& dialed) {
    return Call(dialed, "/trainyard.v1.JobService/GetServerInfo");
  }
  std::string OwnTokenFile() { return TokenPath(*UserTokenFolder(), coordinator_->address()); }

  const TemporaryFolder folder_;
  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
};

std::set<std::string> AllMethods() {
  std::set<std::string> methods;
  for (const char* name : {"trainyard.v1.JobService", "trainyard.v1.AgentService"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) {
      methods.insert(absl::StrCat("/", name, "/", service->method(i)->name()));
    }
  }
  return methods;
}

TEST_F(AccessTest, EveryCall_RequiresTheToken) {
  Start();
  CoordinatorChannel dialed = *Dial();
  EXPECT_FALSE(dialed.token.empty());
  ASSERT_GT(AllMethods().size(), 12u);

  for (const std::string& method : AllMethods()) {
    dialed.token = Dial()->token;
    // A method without a handler is unimplemented for every caller.
    if (Call(dialed, method).error_code() == grpc::StatusCode::UNIMPLEMENTED) continue;
    dialed.token = "";
    EXPECT_EQ(Call(dialed, method).error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    dialed.token = GenerateToken();
    EXPECT_EQ(Call(dialed, method).error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    dialed.token = Dial()->token;
    EXPECT_NE(Call(dialed, method).error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
  }
}

TEST_F(AccessTest, Refusal_NamesTheUserAndHowToGetAccess_ButNoToken) {
  Start();
  CoordinatorChannel dialed = *Dial();
  const std::string token = std::exchange(dialed.token, "");

  const std::string text = GetServerInfo(dialed).error_message();

  EXPECT_THAT(text, AllOf(HasSubstr(absl::StrCat(geteuid())), HasSubstr("--token-file"),
                          HasSubstr("--allow-local-users"), HasSubstr(OwnTokenFile()), Not(HasSubstr(token))));
}

TEST_F(AccessTest, NewCoordinator_HasANewToken_WhichClientsFind) {
  Start();
  CoordinatorChannel first = *Dial();
  EXPECT_TRUE(GetServerInfo(first).ok());
  options_.listen = coordinator_->address();
  const std::string file = OwnTokenFile();
  coordinator_.reset();
  struct stat info;
  EXPECT_NE(stat(file.c_str(), &info), 0) << "a coordinator that stops removes its token file";

  Start();

  CoordinatorChannel second = *Dial();
  EXPECT_NE(first.token, second.token);
  EXPECT_TRUE(GetServerInfo(second).ok());
  second.token = first.token;
  EXPECT_EQ(GetServerInfo(second).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(TokenHasChanged({.address = coordinator_->address()}, second));
}

TEST_F(AccessTest, AllowLocalUsers_RequiresNoToken) {
  options_.allow_local_users = true;
  Start();

  CoordinatorChannel dialed = *Dial();

  EXPECT_EQ(dialed.token, "");
  EXPECT_TRUE(GetServerInfo(dialed).ok());
}

TEST_F(AccessTest, ChosenTokenFile_IsCreated_AndOnlyItsTokenGivesAccess) {
  options_.token_file = folder_ / "shared";
  Start();

  EXPECT_EQ(GetServerInfo(*Dial()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(GetServerInfo(*Dial(options_.token_file)).ok());
}

TEST_F(AccessTest, UnusableTokenFolder_PutsTheTokenIntoTheStateFolder) {
  ASSERT_EQ(symlink("/nowhere", (folder_ / "trainyard").c_str()), 0);
  Start();

  EXPECT_EQ(GetServerInfo(*Dial()).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(GetServerInfo(*Dial(options_.state + "/token")).ok());
}

TEST_F(AccessTest, HealthCheck_NeedsNoToken) {
  Start();
  CoordinatorChannel dialed = *Dial();
  dialed.token = "";

  EXPECT_TRUE(Call(dialed, "/grpc.health.v1.Health/Check").ok());
}

TEST_F(AccessTest, UnixSocket_IsForItsUserOnly_AndIsRemovedWithTheCoordinator) {
  const std::string path = folder_ / "socket";
  options_.listen = "unix:" + path;
  Start();
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);

  EXPECT_EQ(coordinator_->address(), options_.listen);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_TRUE(GetServerInfo(*Dial()).ok());
  auto second = Coordinator::Start(
      [&] {
        CoordinatorOptions options = options_;
        options.state = folder_ / "second";
        return options;
      }(),
      Clock::GetRealClock(), [](const absl::Status&) { std::abort(); });
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  coordinator_.reset();
  EXPECT_NE(stat(path.c_str(), &info), 0);
}

TEST_F(AccessTest, UnixSocketOfAKilledCoordinator_IsReplaced) {
  const std::string path = folder_ / "socket";
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  std::memcpy(at.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  close(fd);
  options_.listen = "unix:" + path;

  Start();

  EXPECT_TRUE(GetServerInfo(*Dial()).ok());
}

// Connects as another user and reads. Returns 1 if a byte was received, 0 if the connection ended without one, and -1
// if there was no connection.
int BytesReceivedByAnotherUser(const std::string& path) {
  const pid_t pid = fork();
  if (pid == 0) {
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, path.data(), path.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte;
    if (setuid(65533) != 0 || connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) _exit(100);
    _exit(read(fd, &byte, 1) > 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WEXITSTATUS(status) == 100 ? -1 : WEXITSTATUS(status);
}

TEST_F(AccessTest, UnixSocketThatOthersCanReach_AnswersOnlyItsUser) {
  if (geteuid() != 0) return;  // only root can become another user
  const std::string path = folder_ / "socket";
  options_.listen = "unix:" + path;
  Start();
  chmod(folder_.path().c_str(), 0755);
  EXPECT_EQ(BytesReceivedByAnotherUser(path), -1);

  chmod(path.c_str(), 0777);

  EXPECT_EQ(BytesReceivedByAnotherUser(path), 0);
  EXPECT_TRUE(GetServerInfo(*Dial()).ok());
}

TEST(BearerToken, IsWhatFollowsTheScheme) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer abc"), "abc");
  for (const char* none : {"", "Bearer", "Basic abc", "abc"}) EXPECT_EQ(BearerToken(none), "") << none;
}

}  // namespace
}  // namespace trainyard
