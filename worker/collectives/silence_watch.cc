#include "worker/collectives/silence_watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

// [Note: silence] in the header gives the reasons for these numbers.
constexpr absl::Duration kCheckInterval = absl::Seconds(1);
constexpr absl::Duration kMaxSilence = absl::Seconds(12);
constexpr uint32_t kMinRetransmissions = 5;
constexpr uint32_t kMinProbesLost = 12;
constexpr uint32_t kMinRetransmissionsUnprobed = 8;
constexpr uint32_t kMinRetransmissionsInDoubt = 2;
constexpr int kKeepaliveIdleS = 3;
constexpr int kKeepaliveIntervalS = 1;
constexpr int kKeepaliveProbes = 14;

void EnableKeepalive(int fd) {
  const int on = 1;
  // Options that cannot be set leave the connection unchanged.
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepaliveIdleS, sizeof kKeepaliveIdleS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveIntervalS, sizeof kKeepaliveIntervalS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepaliveProbes, sizeof kKeepaliveProbes);
}

std::optional<ConnectionState> ReadState(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return ConnectionState{.unacknowledged = info.tcpi_unacked,
                         .retransmissions = info.tcpi_retransmits,
                         .since_answer = absl::Milliseconds(info.tcpi_last_ack_recv)};
}

std::string PeerAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  char text[INET6_ADDRSTRLEN] = "an unknown address";
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return text;
  if (storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in&>(storage).sin_addr, text, sizeof text);
  } else if (storage.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6&>(storage).sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace

bool IsInDoubt(const ConnectionState& state) {
  return state.unacknowledged > 0 && state.retransmissions >= kMinRetransmissionsInDoubt;
}

bool IsSilent(const ConnectionState& state) {
  if (state.unacknowledged == 0 || state.since_answer < kMaxSilence) return false;
  if (!state.answers_probes) return state.retransmissions >= kMinRetransmissionsUnprobed;
  return state.retransmissions >= kMinRetransmissions && state.probes_lost >= kMinProbesLost;
}

SilenceWatch::SilenceWatch(const std::vector<WatchedConnection>& connections,
                           std::function<void(const std::string& what)> on_silence)
    : on_silence_(std::move(on_silence)) {
  for (const WatchedConnection& connection : connections) {
    EnableKeepalive(connection.fd);
    watched_.push_back({.fd = connection.fd, .probe = ReachProbe(connection.fd, connection.probe_port)});
  }
  thread_ = std::thread([this] { Run(); });
}

SilenceWatch::~SilenceWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stop_requested_.SignalAll();
  }
  thread_.join();
}

void SilenceWatch::Run() {
  // A first probe while the connection is healthy shows whether probes are answered at all.
  for (Watched& watched : watched_) watched.probe.Send();
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stop_requested_.AwaitFor(&mu_, kCheckInterval,
                                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; }))
        return;
    }
    for (Watched& watched : watched_) {
      watched.probe.Poll();
      std::optional<ConnectionState> state = ReadState(watched.fd);
      if (!state.has_value() || !IsInDoubt(*state)) {
        watched.probe.Clear();
        continue;
      }
      state->answers_probes = watched.probe.answers();
      state->probes_lost = watched.probe.unanswered();
      if (IsSilent(*state)) {
        return on_silence_(absl::StrCat("the host at ", PeerAddress(watched.fd), " has not answered for ",
                                        absl::FormatDuration(state->since_answer), " (resent ", state->retransmissions,
                                        " times, ", state->probes_lost,
                                        " probes unanswered): the host or the network to it is down"));
      }
      watched.probe.Send();
    }
  }
}

}  // namespace trainyard
