// Slow is not silent: which connections count as gone, and that a living one does not.
#include "worker/collectives/silence_watch.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace trainyard {
namespace {

struct Case {
  const char* name;
  ConnectionState state;
  bool is_silent;
};

class IsSilentTest : public ::testing::TestWithParam<Case> {};

TEST_P(IsSilentTest, Decides) { EXPECT_EQ(IsSilent(GetParam().state), GetParam().is_silent); }

INSTANTIATE_TEST_SUITE_P(All, IsSilentTest,
                         ::testing::Values(Case{"HostCutOff", {12, 6, absl::Seconds(13)}, true},
                                           Case{"JustCutOff", {12, 4, absl::Seconds(6)}, false},
                                           // Its kernel answers "not now": nothing is under way but probes.
                                           Case{"PeerThatDoesNotRead", {0, 9, absl::Minutes(2)}, false},
                                           // Keepalive's to find.
                                           Case{"NothingUnderWay", {0, 0, absl::Hours(1)}, false},
                                           // Each answer counts, however much is lost on the way.
                                           Case{"LossyNetwork", {40, 7, absl::Milliseconds(900)}, false},
                                           // The process was stopped itself and has sent nothing again yet.
                                           Case{"WokenUp", {3, 1, absl::Minutes(1)}, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SilenceWatch, TurnsKeepaliveOn_AndSaysNothingOfALivingConnection) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  int client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), length), 0);
  bool silent = false;

  {
    SilenceWatch watch({client, 0}, [&](const std::string&) { silent = true; });
  }

  int idle_s = 0, on = 0;
  length = sizeof on;
  EXPECT_EQ(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &on, &length), 0);
  EXPECT_EQ(getsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &length), 0);
  EXPECT_EQ(on, 1);
  EXPECT_EQ(idle_s, 5);
  EXPECT_FALSE(silent);
  close(client);
  close(listener);
}

}  // namespace
}  // namespace trainyard
