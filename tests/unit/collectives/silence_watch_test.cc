// Which connections are reported as dead. A slow connection to a live host is not.
#include "worker/collectives/silence_watch.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>

#include "worker/collectives/tcp_sockets.h"

namespace trainyard {
namespace {

struct Case {
  const char* name;
  ConnectionState state;
  bool is_silent;
};

class IsSilentTest : public ::testing::TestWithParam<Case> {};

TEST_P(IsSilentTest, IsTrueOnlyForAnUnreachableHost) { EXPECT_EQ(IsSilent(GetParam().state), GetParam().is_silent); }

// The states are {unacknowledged, retransmissions, since_answer, answers_probes, probes_lost}.
INSTANTIATE_TEST_SUITE_P(
    All, IsSilentTest,
    ::testing::Values(Case{"HostCutOff", {12, 6, absl::Seconds(13), true, 12}, true},
                      Case{"JustCutOff", {12, 4, absl::Seconds(6), true, 5}, false},
                      Case{"HostThatAnsweredAProbe", {12, 7, absl::Seconds(40), true, 11}, false},
                      // Unanswered probes prove nothing here, because the network may drop all probes.
                      Case{"HostThatNeverAnswersProbes", {12, 7, absl::Seconds(30), false, 28}, false},
                      Case{"HostThatNeverAnsweredProbes_Unreachable", {12, 8, absl::Seconds(52), false, 50}, true},
                      // The peer's kernel reports a full receive window: only window probes are in progress.
                      Case{"PeerThatDoesNotRead", {0, 9, absl::Minutes(2)}, false},
                      // TCP keepalive checks idle connections.
                      Case{"IdleConnection", {0, 0, absl::Hours(1)}, false},
                      // Any answer counts, however many packets are lost.
                      Case{"LossyNetwork", {40, 7, absl::Milliseconds(900)}, false},
                      // This process was stopped and has not resent anything yet.
                      Case{"ContinuedProcess", {3, 1, absl::Minutes(1)}, false}),
    [](const auto& info) { return std::string(info.param.name); });

// The constants of IsSilent follow from this calculation, with independent packet losses. A connection starts at most
// five chains of resends per second, because the first resend comes after 0.2 s. For 12 s without an answer five
// resends must be lost, and then each of the probes.
TEST(IsSilentTest, TenPercentPacketLoss_EndsAConnectionLessThanOnceInAMillionHours) {
  const double lost = 1 - 0.9 * 0.9;
  ConnectionState state{.unacknowledged = 1, .since_answer = absl::Hours(1), .answers_probes = true};
  while (!IsSilent(state) && state.retransmissions < 100) {
    ++state.retransmissions;
    for (state.probes_lost = 0; !IsSilent(state) && state.probes_lost < 100;) ++state.probes_lost;
  }

  const double alarms_per_hour = 5 * 3600 * std::pow(lost, state.retransmissions + state.probes_lost);

  EXPECT_LT(alarms_per_hour, 1e-6) << state.retransmissions << " resends, " << state.probes_lost << " probes";
}

// A listener on loopback and connections to it.
class Loopback {
 public:
  Loopback() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    address_ = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t length = sizeof address_;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address_), length), 0);
    EXPECT_EQ(listen(listener_, 0), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &length), 0);
  }
  ~Loopback() {
    for (int fd : clients_) close(fd);
    close(listener_);
  }
  int Connect() {
    clients_.push_back(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(clients_.back(), reinterpret_cast<sockaddr*>(&address_), sizeof address_), 0);
    return clients_.back();
  }
  // Accepts one connection, so that another fits the queue.
  void Accept() { clients_.push_back(accept(listener_, nullptr, nullptr)); }
  uint16_t port() const { return ntohs(address_.sin_port); }

 private:
  int listener_;
  sockaddr_in address_;
  std::vector<int> clients_;
};

// The kernel's answer may take a moment.
void ProbeUntilAnswered(ReachProbe& probe) {
  for (int i = 0; i < 1'000'000 && !probe.answers(); ++i) {
    probe.Send();
    probe.Poll();
  }
}

TEST(ReachProbe, RefusalIsAnAnswer) {
  Loopback loopback;
  int client = loopback.Connect();
  int closed = BindClosedPort("127.0.0.1");
  uint16_t port = LocalPort(closed).value_or(0);
  ReachProbe probe(client, port);

  ProbeUntilAnswered(probe);

  EXPECT_TRUE(probe.answers());
  EXPECT_EQ(probe.unanswered(), 0u);
  EXPECT_EQ(ClosedPortAcross(client, {{.address = "127.0.0.1", .port = 1, .closed_port = port}}), port);
  EXPECT_EQ(ClosedPortAcross(client, {{.address = "10.0.0.1", .port = 1, .closed_port = port}}), 0);
  close(closed);
}

// A listener with a full queue does not answer, like a dead host.
TEST(ReachProbe, UnansweredProbes_AreCountedUntilAnAnswer) {
  Loopback loopback;
  int client = loopback.Connect();
  ReachProbe probe(client, loopback.port());
  for (uint32_t sent = 1; sent <= 12; ++sent) {
    probe.Send();
    probe.Poll();
    ASSERT_EQ(probe.unanswered(), sent);
  }
  EXPECT_FALSE(probe.answers());

  loopback.Accept();
  ProbeUntilAnswered(probe);

  EXPECT_TRUE(probe.answers());
  EXPECT_EQ(probe.unanswered(), 0u);
}

TEST(ReachProbe, InvalidConnection_IsNotProbed) {
  ReachProbe probe(0, 7);
  probe.Send();
  probe.Poll();
  EXPECT_FALSE(probe.answers());
  EXPECT_EQ(probe.unanswered(), 0u);
}

TEST(SilenceWatch, EnablesKeepalive_AndDoesNotReportALiveConnection) {
  Loopback loopback;
  int client = loopback.Connect();
  bool silent = false;

  {
    SilenceWatch watch({{.fd = client}, {.fd = 0}}, [&](const std::string&) { silent = true; });
  }

  int idle_s = 0, interval_s = 0, probes = 0, on = 0;
  socklen_t length = sizeof on;
  EXPECT_EQ(getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &on, &length), 0);
  EXPECT_EQ(getsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &length), 0);
  EXPECT_EQ(getsockopt(client, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, &length), 0);
  EXPECT_EQ(getsockopt(client, IPPROTO_TCP, TCP_KEEPCNT, &probes, &length), 0);
  EXPECT_EQ(on, 1);
  EXPECT_EQ(idle_s, 3);
  EXPECT_LE(interval_s * probes, 15) << "the time to detect a dead host on an idle connection";
  // An idle connection has 3,600 / 3 probes per hour, and is ended only if 14 in a row remain unanswered.
  EXPECT_LT(3600.0 / idle_s * std::pow(1 - 0.9 * 0.9, probes), 1e-6);
  EXPECT_FALSE(silent);
}

}  // namespace
}  // namespace trainyard
