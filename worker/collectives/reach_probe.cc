#include "worker/collectives/reach_probe.h"

#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trainyard {
namespace {

// A probe is polled once a second and closed after this many polls. In that time the kernel resends the connection
// attempt twice, after 1 s and after 2 s more.
constexpr int kMaxPolls = 4;
constexpr size_t kMaxOpen = 4;  // probes are sent once a second, so no more than kMaxPolls are open
constexpr int kPending = -1;

bool IsAnswer(int error) { return error == 0 || error == ECONNREFUSED || error == ECONNRESET; }

// The error with which the attempt ended, 0 if it was accepted, or kPending.
int ConnectResult(int fd) {
  pollfd polled{.fd = fd, .events = POLLOUT, .revents = 0};
  if (poll(&polled, 1, 0) <= 0) return kPending;
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

ReachProbe::ReachProbe(int connection, uint16_t port) {
  socklen_t length = sizeof peer_;
  if (port == 0 || getpeername(connection, reinterpret_cast<sockaddr*>(&peer_), &length) != 0) return;
  if (peer_.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(peer_).sin_port = htons(port);
  } else if (peer_.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(peer_).sin6_port = htons(port);
  } else {
    return;
  }
  peer_length_ = length;
}

ReachProbe::ReachProbe(ReachProbe&& other) noexcept
    : peer_(other.peer_),
      peer_length_(other.peer_length_),
      open_(std::exchange(other.open_, {})),
      answers_(other.answers_),
      unanswered_(other.unanswered_) {}

ReachProbe::~ReachProbe() {
  for (const Probe& probe : open_) close(probe.fd);
}

void ReachProbe::Send() {
  if (peer_length_ == 0 || open_.size() >= kMaxOpen) return;
  int fd = socket(peer_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer_), peer_length_) == 0 || IsAnswer(errno)) {
    close(fd);
    return HandleAnswer();
  }
  open_.push_back({.fd = fd});
}

void ReachProbe::Poll() {
  bool answered = false;
  std::erase_if(open_, [&](Probe& probe) {
    const int outcome = ConnectResult(probe.fd);
    answered = answered || IsAnswer(outcome);
    if (++probe.polls == 1) ++unanswered_;
    // Any other end (for example, no route) is not an answer, and no answer will follow.
    if (probe.polls < kMaxPolls && outcome == kPending) return false;
    close(probe.fd);
    return true;
  });
  if (answered) HandleAnswer();
}

void ReachProbe::HandleAnswer() {
  answers_ = true;
  unanswered_ = 0;
  for (const Probe& probe : open_) close(probe.fd);
  open_.clear();
}

}  // namespace trainyard
