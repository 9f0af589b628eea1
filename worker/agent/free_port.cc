#include "worker/agent/free_port.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"

namespace trainyard::agent {
namespace {

constexpr char kEphemeralRange[] = "/proc/sys/net/ipv4/ip_local_port_range";
constexpr int kLowestPort = 15000;
constexpr int kPortsEnd = 65536;  // exclusive
// If fewer ports than this lie below the kernel's range for outgoing connections, ports in that range are used, too.
constexpr int kFewestPorts = 1000;
constexpr int kPortTries = 500;
constexpr size_t kPortsRemembered = 256;

// Returns the end, exclusive, of the range to choose from.
int EndOfRange() {
  const absl::StatusOr<std::string> text = ReadFile(kEphemeralRange, 256);
  const std::vector<std::string> ends = absl::StrSplit(text.ok() ? *text : "", absl::ByAnyChar(" \t\n"));
  int first_ephemeral = 0;
  if (!absl::SimpleAtoi(ends.front(), &first_ephemeral)) return kPortsEnd;
  return first_ephemeral >= kLowestPort + kFewestPorts ? std::min(first_ephemeral, kPortsEnd) : kPortsEnd;
}

template <typename Address>
bool CanBind(int family, const Address& address) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return family == AF_INET6;  // this host has no IPv6
  absl::Cleanup close_fd = [fd] { close(fd); };
  const int on = 1;
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  // Other errors (no address of this family) say nothing about the port.
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno != EADDRINUSE;
}

// Whether a program can listen on this port at all addresses.
bool IsFree(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  sockaddr_in6 address6 = {};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(port);
  return CanBind(AF_INET, address) && CanBind(AF_INET6, address6);
}

}  // namespace

absl::StatusOr<uint16_t> PortChooser::Choose() {
  const int end = EndOfRange();
  for (int i = 0; i < kPortTries; ++i) {
    const auto port = static_cast<uint16_t>(absl::Uniform(random_, kLowestPort, end));
    if (std::find(recent_.begin(), recent_.end(), port) != recent_.end() || !IsFree(port)) continue;
    recent_.push_back(port);
    if (recent_.size() > kPortsRemembered) recent_.pop_front();
    return port;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no free port for MASTER_PORT from ", kLowestPort, " to ", end - 1, " in ", kPortTries, " tries"));
}

}  // namespace trainyard::agent
