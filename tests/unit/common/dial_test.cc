// Dialing a coordinator: which listeners are trusted, and which receive the token. Listeners are sockets that receive
// no requests.
#include "common/dial.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/tokens.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kStranger = 65533;

// Returns a socket that listens at this port of ::1, or -1.
int ListenAtLoopback6(uint16_t port) {
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  at.sin6_port = htons(port);
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(fd, 8) == 0) return fd;
  close(fd);
  return -1;
}

// A process that listens as `user`, on loopback, at `path` if one is given, or at `port6` of ::1 if that is not 0.
class ListeningProcess {
 public:
  explicit ListeningProcess(uid_t user, const std::string& path = "", uint16_t port6 = 0) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const bool runs_as_user = user == geteuid() || setuid(user) == 0;
      uint16_t port = 0;
      if (runs_as_user && port6 == 0) port = Listen(path);
      if (runs_as_user && port6 != 0) port = ListenAtLoopback6(port6) >= 0 ? port6 : 0;
      if (write(ready[1], &port, sizeof port) != sizeof port) _exit(1);
      pause();
      _exit(0);
    }
    EXPECT_EQ(read(ready[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    EXPECT_NE(port_, 0);
    close(ready[0]);
    close(ready[1]);
  }
  ~ListeningProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  uint16_t port() const { return port_; }

 private:
  // Returns the port of the listener, 1 for a path, or 0 if it could not listen.
  static uint16_t Listen(const std::string& path) {
    if (!path.empty()) {
      sockaddr_un at = {};
      at.sun_family = AF_UNIX;
      std::memcpy(at.sun_path, path.data(), path.size());
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      const bool listens = bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(fd, 8) == 0;
      return listens && chmod(path.c_str(), 0777) == 0 ? 1 : 0;
    }
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool listens = bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 && listen(fd, 8) == 0;
    return listens && getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0 ? ntohs(at.sin_port) : 0;
  }

  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

class DialTest : public ::testing::Test {
 protected:
  DialTest() { setenv("XDG_STATE_HOME", folder_.path().c_str(), 1); }

  absl::StatusOr<CoordinatorChannel> Dial(const DialOptions& options) {
    return DialCoordinator(options, grpc::ChannelArguments());
  }
  std::string NamedToken(uid_t owner) {
    const std::string path = folder_ / "named";
    std::ofstream(path) << "0123456789abcdef";
    chmod(path.c_str(), 0600);
    EXPECT_TRUE(owner == geteuid() || chown(path.c_str(), owner, owner) == 0);
    return path;
  }

  const TemporaryFolder folder_;
};

TEST_F(DialTest, ListenerOfThisUser_GetsTheTokenOfItsAddress) {
  ListeningProcess listener(geteuid());
  ASSERT_EQ(WriteToken(*UserTokenFolder(), listener.address(), "0123456789abcdef"), absl::OkStatus());

  auto dialed = Dial({.address = listener.address(), .requires_trusted_peer = true});

  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->token, "0123456789abcdef");
  EXPECT_FALSE(TokenHasChanged({.address = listener.address()}, *dialed));
  ASSERT_EQ(WriteToken(*UserTokenFolder(), listener.address(), "another-0123456789"), absl::OkStatus());
  EXPECT_TRUE(TokenHasChanged({.address = listener.address()}, *dialed));
}

TEST_F(DialTest, Localhost_UsesTheTokenOfTheAddressThatAnswers) {
  ListeningProcess listener(geteuid());
  ASSERT_EQ(WriteToken(*UserTokenFolder(), listener.address(), "0123456789abcdef"), absl::OkStatus());
  const std::string port = listener.address().substr(listener.address().rfind(':'));

  auto dialed = Dial({.address = absl::StrCat("localhost", port)});

  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->token, "0123456789abcdef");
}

TEST_F(DialTest, Localhost_PrefersTheAddressWhereATrustedUserListens) {
  if (geteuid() != 0) return;  // only root can start a process of another user
  ListeningProcess listener(geteuid());
  const int probe = ListenAtLoopback6(listener.port());
  if (probe < 0) return;  // there is no IPv6 here, or the port is in use
  close(probe);
  ListeningProcess stranger(kStranger, "", listener.port());
  ASSERT_EQ(WriteToken(*UserTokenFolder(), listener.address(), "0123456789abcdef"), absl::OkStatus());
  const std::string localhost = absl::StrCat("localhost:", listener.port());

  auto dialed = Dial({.address = localhost, .requires_trusted_peer = true});

  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->address, listener.address());
  EXPECT_EQ(dialed->token, "0123456789abcdef");
  EXPECT_EQ(Dial({.address = localhost})->address, listener.address()) << "a job must not go to the stranger, either";
}

TEST_F(DialTest, NoListener_IsUnavailable) {
  std::string address;
  { address = ListeningProcess(geteuid()).address(); }

  EXPECT_TRUE(absl::IsUnavailable(Dial({.address = address, .requires_trusted_peer = true}).status()));
  EXPECT_TRUE(absl::IsUnavailable(Dial({.address = "unix:" + folder_ / "none"}).status()));
}

TEST_F(DialTest, ListenerOfAnotherUser_GetsNoToken_AndIsNotTrusted) {
  if (geteuid() != 0) return;  // only root can start a process of another user
  ListeningProcess listener(kStranger);

  EXPECT_TRUE(Dial({.address = listener.address()}).ok()) << "without a token, nothing secret is sent";
  absl::Status requiring_trust = Dial({.address = listener.address(), .requires_trusted_peer = true}).status();
  ASSERT_EQ(WriteToken(*UserTokenFolder(), listener.address(), "0123456789abcdef"), absl::OkStatus());
  absl::Status with_token = Dial({.address = listener.address()}).status();

  for (const absl::Status& status : {requiring_trust, with_token}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(kStranger)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(listener.address()));
  }
}

TEST_F(DialTest, OwnerOfTheNamedTokenFile_IsTrusted) {
  if (geteuid() != 0) return;
  ListeningProcess listener(kStranger);

  auto dialed =
      Dial({.address = listener.address(), .token_file = NamedToken(kStranger), .requires_trusted_peer = true});

  ASSERT_TRUE(dialed.ok()) << dialed.status();
  EXPECT_EQ(dialed->token, "0123456789abcdef");
  EXPECT_TRUE(absl::IsPermissionDenied(
      Dial({.address = listener.address(), .token_file = NamedToken(kStranger - 1), .requires_trusted_peer = true})
          .status()));
}

TEST_F(DialTest, UnixSocketOfAnotherUser_IsNotTrusted) {
  chmod(folder_.path().c_str(), 0777);
  const std::string own = folder_ / "own", foreign = folder_ / "foreign";
  ListeningProcess listener(geteuid(), own);

  EXPECT_TRUE(Dial({.address = "unix:" + own, .requires_trusted_peer = true}).ok());
  if (geteuid() != 0) return;
  ListeningProcess stranger(kStranger, foreign);

  EXPECT_TRUE(absl::IsPermissionDenied(Dial({.address = "unix:" + foreign, .requires_trusted_peer = true}).status()));
}

TEST_F(DialTest, MissingTokenFile_IsNamed) {
  absl::Status status = Dial({.address = "127.0.0.1:1", .token_file = folder_ / "missing"}).status();

  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ / "missing"));
}

}  // namespace
}  // namespace trainyard
