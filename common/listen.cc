#include "common/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/network.h"

namespace trainyard {
namespace {

constexpr int kBacklog = 128;
constexpr absl::Duration kRetryDelay = absl::Milliseconds(20);

// Returns a listening socket, or -1 with errno set.
int TryListen(const addrinfo& at) {
  int fd = socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol);
  if (fd < 0) return -1;
  const int on = 1;  // ignore connections of the previous process that are still closing
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, at.ai_addr, at.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

absl::Status ListenError(int error, absl::string_view address) {
  if (error == EADDRINUSE) return absl::UnavailableError(absl::StrCat("port ", address, " is in use"));
  if (error == EADDRNOTAVAIL)
    return absl::InvalidArgumentError(absl::StrCat(address, " is not an address of this host"));
  return ErrnoStatus(error, absl::StrCat("cannot listen on ", address));
}

}  // namespace

absl::StatusOr<Listener> ListenOn(absl::string_view address, absl::Duration wait) {
  absl::optional<HostPort> split = SplitHostPort(address, /*port_min=*/0);
  if (!split.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected host:port with a port from 0 to 65535, found '", address, "'"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string host(split->host);
  if (int code = getaddrinfo(host.c_str(), absl::StrCat(split->port).c_str(), &hints, &found); code != 0) {
    return absl::InvalidArgumentError(absl::StrCat(address, " is not an address of this host: ", gai_strerror(code)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (const absl::Time deadline = absl::Now() + wait;; absl::SleepFor(kRetryDelay)) {
    int error = EADDRNOTAVAIL;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      const int fd = TryListen(*at);
      if (fd >= 0) {
        const absl::string_view given_host = address.substr(0, address.rfind(':'));
        return Listener{.fd = fd, .address = absl::StrCat(given_host, ":", PortOf(fd))};
      }
      if (error != EADDRINUSE) error = errno;  // of several errors, EADDRINUSE helps the user most
    }
    if (error != EADDRINUSE || absl::Now() >= deadline) return ListenError(error, address);
  }
}

}  // namespace trainyard
