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

constexpr absl::Duration kLookInterval = absl::Seconds(1);
constexpr absl::Duration kSilenceMax = absl::Seconds(12);
constexpr uint32_t kRetransmissionsMin = 5;
constexpr int kKeepaliveIdleS = 5;
constexpr int kKeepaliveIntervalS = 2;
constexpr int kKeepaliveProbes = 3;

void KeepAlive(int fd) {
  const int on = 1;
  // What cannot be set leaves the connection as it was.
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kKeepaliveIdleS, sizeof kKeepaliveIdleS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kKeepaliveIntervalS, sizeof kKeepaliveIntervalS);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kKeepaliveProbes, sizeof kKeepaliveProbes);
}

std::optional<ConnectionState> LookAt(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return ConnectionState{.unacknowledged = info.tcpi_unacked,
                         .retransmissions = info.tcpi_retransmits,
                         .since_answer = absl::Milliseconds(info.tcpi_last_ack_recv)};
}

std::string PeerOf(int fd) {
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

bool IsSilent(const ConnectionState& state) {
  return state.unacknowledged > 0 && state.retransmissions >= kRetransmissionsMin && state.since_answer >= kSilenceMax;
}

SilenceWatch::SilenceWatch(std::vector<int> descriptors, std::function<void(const std::string& what)> on_silence)
    : descriptors_(std::move(descriptors)), on_silence_(std::move(on_silence)) {
  for (int fd : descriptors_) KeepAlive(fd);
  thread_ = std::thread([this] { Run(); });
}

SilenceWatch::~SilenceWatch() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stop_asked_.SignalAll();
  }
  thread_.join();
}

void SilenceWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stop_asked_.AwaitFor(&mu_, kLookInterval, [this] { return stopping_; })) return;
    }
    for (int fd : descriptors_) {
      std::optional<ConnectionState> state = LookAt(fd);
      if (!state.has_value() || !IsSilent(*state)) continue;
      return on_silence_(absl::StrCat("the host at ", PeerOf(fd), " has not answered for ",
                                      absl::FormatDuration(state->since_answer), " (sent again ",
                                      state->retransmissions, " times): it, or the network to it, is gone"));
    }
  }
}

}  // namespace trainyard
