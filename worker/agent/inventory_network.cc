// The network of this host: its interfaces, and the address for traffic between ranks.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/network.h"
#include "worker/agent/inventory.h"

namespace trainyard::agent {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
// Reserved for documentation, so it is no address of this host, and usually only the default route leads to it.
constexpr char kElsewhere[] = "192.0.2.1";
constexpr uint64_t kSpeedBytes = 64;

// The host part of host:port, without the brackets of an IPv6 address.
std::string HostPart(const std::string& address) {
  size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(0, colon == std::string::npos ? address.size() : colon);
  absl::ConsumePrefix(&host, "[");
  absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text, sizeof text) != nullptr ? text : "";
}

// In megabits per second; 0 if the driver does not say. A virtual interface reports -1, and reading the file of an
// interface that is down fails.
uint32_t SpeedOf(const std::string& name, const std::string& sys) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(sys, "/class/net/", name, "/speed"), kSpeedBytes);
  int64_t speed = 0;
  return text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &speed) && speed > 0
             ? static_cast<uint32_t>(speed)
             : 0;
}

// The address from which this host would connect to `host`.
absl::StatusOr<std::string> AddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // Any port will do, because nothing is sent.
  if (const int error = getaddrinfo(host.c_str(), "9", &hints, &found); error != 0) {
    return absl::NotFoundError(absl::StrCat("the name '", host, "' is not resolved: ", gai_strerror(error)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  for (addrinfo* at = found; at != nullptr; at = at->ai_next) {
    // Connecting a datagram socket sends nothing, but makes the kernel choose the interface.
    int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    absl::Cleanup close_fd = [fd] { close(fd); };
    sockaddr_storage local = {};
    socklen_t size = sizeof local;
    if (connect(fd, at->ai_addr, at->ai_addrlen) != 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    std::string text = AddressText(reinterpret_cast<sockaddr*>(&local));
    if (text == "::1") return kLoopback;
    if (!text.empty()) return text;
  }
  return absl::NotFoundError(absl::StrCat("no interface of this host leads to ", host));
}

}  // namespace

absl::StatusOr<std::string> FindDataAddress(const std::string& coordinator) {
  if (SplitUnixAddress(coordinator).has_value()) return kLoopback;
  const std::string host = HostPart(coordinator);
  absl::StatusOr<std::string> address = AddressTowards(host);
  if (!address.ok() || !IsLoopbackHost(*address) || IsLoopbackHost(host)) return address;
  // The coordinator runs on this host, and its name means loopback only here: Debian's installer gives the name of a
  // host the address 127.0.1.1 in /etc/hosts. Other hosts attach by this name, too, and must reach the ranks here.
  absl::StatusOr<std::string> elsewhere = AddressTowards(kElsewhere);
  return elsewhere.ok() ? elsewhere : address;
}

std::string DataAddress(const std::string& coordinator) { return FindDataAddress(coordinator).value_or(kLoopback); }

std::string InterfaceOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  absl::Cleanup free_all = [all] { freeifaddrs(all); };
  for (ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    int family = at->ifa_addr->sa_family;
    if ((family == AF_INET || family == AF_INET6) && AddressText(at->ifa_addr) == address) return at->ifa_name;
  }
  return "";
}

absl::StatusOr<std::string> InterfaceAddress(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return ErrnoStatus(errno, "cannot list network interfaces");
  absl::Cleanup free_all = [all] { freeifaddrs(all); };
  std::set<std::string> names;
  std::string ipv6;
  for (ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    names.insert(at->ifa_name);
    if (at->ifa_name != name || at->ifa_addr == nullptr) continue;
    if (at->ifa_addr->sa_family == AF_INET) return AddressText(at->ifa_addr);
    if (at->ifa_addr->sa_family != AF_INET6 || !ipv6.empty()) continue;
    std::string text = AddressText(at->ifa_addr);
    if (!absl::StartsWith(text, "fe80:")) ipv6 = text;
  }
  if (!ipv6.empty()) return ipv6;
  return absl::NotFoundError(absl::StrCat(names.contains(name) ? "no address on interface '" : "no interface '", name,
                                          "'; interfaces of this host: ", absl::StrJoin(names, ", ")));
}

std::vector<NetworkInterface> ListInterfaces(const std::string& sys) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  absl::Cleanup free_all = [all] { freeifaddrs(all); };
  std::map<std::string, NetworkInterface> interfaces;
  for (ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    NetworkInterface& found = interfaces[at->ifa_name];
    found.name = at->ifa_name;
    found.is_up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0;
    found.is_loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) found.addresses.push_back(AddressText(at->ifa_addr));
  }
  std::vector<NetworkInterface> list;
  for (auto& [name, found] : interfaces) {
    found.speed_mbits = SpeedOf(name, sys);
    list.push_back(std::move(found));
  }
  return list;
}

}  // namespace trainyard::agent
