#include "common/listeners.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr absl::string_view kListening = "0A";  // TCP_LISTEN
// The length of a row of /proc/net/tcp. The rows of listeners come first, and reading ends at the first other row. For
// a longer read, the kernel would search its whole table of connections for more rows.
constexpr size_t kChunkBytes = 150;

// An address as 16 bytes in network byte order, IPv4 mapped into IPv6.
using Bytes = std::array<uint8_t, 16>;

Bytes MappedBytes(const void* ipv4) {
  Bytes bytes = {};
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(&bytes[12], ipv4, 4);
  return bytes;
}

Bytes BytesOf(const sockaddr_storage& address) {
  Bytes bytes = {};
  if (address.ss_family == AF_INET) return MappedBytes(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, bytes.size());
  return bytes;
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

// Parses "0100007F", or four such numbers of 32 bits without a separator, each in the byte order of this machine.
bool ParseAddress(absl::string_view hex, Bytes* bytes) {
  if (hex.size() != 8 && hex.size() != 32) return false;
  std::vector<uint32_t> words(hex.size() / 8);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleHexAtoi(hex.substr(8 * i, 8), &words[i])) return false;
  }
  if (words.size() == 1) {
    *bytes = MappedBytes(words.data());
  } else {
    std::memcpy(bytes->data(), words.data(), bytes->size());
  }
  return true;
}

bool IsAny(const Bytes& bytes) {
  const uint32_t zero = 0;
  return bytes == Bytes{} || bytes == MappedBytes(&zero);
}

absl::Status ReadTable(const char* path, const sockaddr_storage& address, std::vector<PortOwner>* found) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT && absl::string_view(path).back() == '6') return absl::OkStatus();  // no IPv6 here
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  std::string rest;
  bool first = true;
  while (true) {
    char chunk[kChunkBytes];
    const ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path));
    if (n == 0) return absl::OkStatus();
    rest.append(chunk, static_cast<size_t>(n));
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      if (!std::exchange(first, false) && !ParseListener(rest.substr(0, end), address, found)) return absl::OkStatus();
    }
  }
}

}  // namespace

bool ParseListener(absl::string_view line, const sockaddr_storage& address, std::vector<PortOwner>* found) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (fields.size() < 8 || fields[3] != kListening) return false;
  const std::vector<absl::string_view> local = absl::StrSplit(fields[1], ':');
  Bytes bytes = {};
  uint32_t port = 0;
  uid_t user = 0;
  if (local.size() != 2 || !ParseAddress(local[0], &bytes) || !absl::SimpleHexAtoi(local[1], &port) ||
      !absl::SimpleAtoi(fields[7], &user)) {
    return false;
  }
  const bool exact = bytes == BytesOf(address);
  // A socket that listens at all IPv4 addresses does not accept IPv6 connections.
  const bool any = IsAny(bytes) && (address.ss_family == AF_INET || local[0].size() == 32);
  if (port == PortOf(address) && (exact || any)) found->push_back({user, exact});
  return true;
}

absl::StatusOr<std::vector<uid_t>> ListeningUsers(const sockaddr_storage& address) {
  std::vector<PortOwner> found;
  if (address.ss_family == AF_INET) {
    RETURN_IF_ERROR(ReadTable("/proc/net/tcp", address, &found));
  }
  const auto is_exact = [](const PortOwner& listener) { return listener.exact; };
  if (std::none_of(found.begin(), found.end(), is_exact)) {
    RETURN_IF_ERROR(ReadTable("/proc/net/tcp6", address, &found));
  }
  const bool exact = std::any_of(found.begin(), found.end(), is_exact);
  std::vector<uid_t> users;
  for (const PortOwner& listener : found) {
    if (listener.exact == exact && std::count(users.begin(), users.end(), listener.user) == 0) {
      users.push_back(listener.user);
    }
  }
  return users;
}

absl::StatusOr<std::vector<uid_t>> UsersOfTwoLooks(const std::vector<uid_t>& before, const std::vector<uid_t>& after,
                                                   absl::string_view address) {
  if (before.empty() != after.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the program that listens at ", address, " has just changed; nothing was sent there. Try again"));
  }
  std::vector<uid_t> users = before;
  users.insert(users.end(), after.begin(), after.end());
  return users;
}

std::string NumericAddress(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
    return absl::StrCat(text, ":", PortOf(address));
  }
  if (address.ss_family != AF_INET6) return "";
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  return absl::StrCat("[", text, "]:", PortOf(address));
}

}  // namespace trainyard
