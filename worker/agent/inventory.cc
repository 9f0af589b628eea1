#include "worker/agent/inventory.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/network.h"
#include "common/plain_text.h"
#include "common/version.h"

namespace trainyard::agent {
namespace {

constexpr uint64_t kSmallFileBytes = 64 << 10;
constexpr char kLoopback[] = "127.0.0.1";

// The folder of this process in a cgroup hierarchy; an empty `controller` means version 2.
std::string CgroupFolder(absl::string_view controller) {
  absl::StatusOr<std::string> groups = ReadFile("/proc/self/cgroup", kSmallFileBytes);
  if (!groups.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*groups, '\n')) {
    std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
    return absl::StrCat("/sys/fs/cgroup", controller.empty() ? "" : "/", controller, parts[2] == "/" ? "" : parts[2]);
  }
  return "";
}

// The words of a small file; none if it cannot be read.
std::vector<std::string> ReadWords(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kSmallFileBytes);
  if (!text.ok()) return {};
  return absl::StrSplit(*text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
}

double NumberOr(const std::vector<std::string>& words, size_t index, double fallback) {
  double number;
  return index < words.size() && absl::SimpleAtod(words[index], &number) ? number : fallback;
}

// CPU time that cgroups allow, in cores; infinite if they set no limit.
double CgroupCores() {
  double cores = INFINITY;
  std::vector<std::string> max =
      ReadWords(absl::StrCat(CgroupFolder(""), "/cpu.max"));  // "max 100000" or "150000 100000"
  if (max.size() == 2 && max[0] != "max") cores = NumberOr(max, 0, INFINITY) / NumberOr(max, 1, 1);
  for (const char* controller : {"cpu", "cpuacct"}) {
    std::string folder = CgroupFolder(controller);
    double quota = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_quota_us")), 0, -1);
    double period = NumberOr(ReadWords(absl::StrCat(folder, "/cpu.cfs_period_us")), 0, 0);
    if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
  }
  return cores;
}

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

}  // namespace

uint32_t UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  double cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                             : static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return static_cast<uint32_t>(std::max(1.0, std::ceil(std::min(cores, CgroupCores()))));
}

uint64_t UsableMemoryBytes() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  bytes = std::min(bytes, NumberOr(ReadWords(absl::StrCat(CgroupFolder(""), "/memory.max")), 0, INFINITY));
  bytes =
      std::min(bytes, NumberOr(ReadWords(absl::StrCat(CgroupFolder("memory"), "/memory.limit_in_bytes")), 0, INFINITY));
  return static_cast<uint64_t>(bytes);
}

std::string ThisHost() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

uint64_t DiskFreeBytes(const std::string& path) {
  struct statvfs disk;
  if (statvfs(path.c_str(), &disk) != 0) return 0;
  return uint64_t{disk.f_bavail} * disk.f_frsize;
}

std::string DataAddress(const std::string& coordinator) {
  if (SplitUnixAddress(coordinator).has_value()) return kLoopback;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(HostPart(coordinator).c_str(), "9", &hints, &found) != 0) return kLoopback;
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
  return kLoopback;
}

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

v1::Inventory ReadInventory(const std::string& coordinator) {
  v1::Inventory inventory;
  inventory.set_cores(UsableCores());
  inventory.set_memory_bytes(UsableMemoryBytes());
  utsname name;
  if (uname(&name) == 0) inventory.set_kernel(ValidUtf8(absl::StrCat(name.sysname, " ", name.release), 256));
  inventory.set_version(kVersion);
  inventory.set_torch_version(kTorchVersion);
  inventory.set_data_address(DataAddress(coordinator));
  AddGpus(&inventory);
  return inventory;
}

}  // namespace trainyard::agent
