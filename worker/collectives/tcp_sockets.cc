#include "worker/collectives/tcp_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <optional>

#include "common/files.h"

namespace trainyard {
namespace {

// The address of one end (numeric text, port); nullopt if the socket is not TCP.
std::optional<TcpEnd> EndpointFrom(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    return TcpEnd{.address = text, .port = ntohs(in.sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    return TcpEnd{.address = text, .port = ntohs(in.sin6_port)};
  }
  return std::nullopt;
}

std::optional<TcpEnd> LocalEnd(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  return EndpointFrom(storage);
}

std::optional<TcpEnd> PeerEnd(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return std::nullopt;
  return EndpointFrom(storage);
}

bool IsListener(int fd) {
  int listens = 0;
  socklen_t length = sizeof listens;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

absl::Status ForEachDescriptor(const std::function<void(int)>& visit) {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return ErrnoStatus(errno, "cannot list /proc/self/fd to find a group's connections");
  while (dirent* entry = readdir(folder)) {
    int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder)) visit(fd);
  }
  closedir(folder);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::set<int>> TcpListeners() {
  std::set<int> listeners;
  absl::Status status = ForEachDescriptor([&](int fd) {
    if (IsListener(fd) && LocalEnd(fd).has_value()) listeners.insert(fd);
  });
  if (!status.ok()) return status;
  return listeners;
}

absl::StatusOr<uint16_t> LocalPort(int fd) {
  std::optional<TcpEnd> end = LocalEnd(fd);
  if (!end.has_value()) return absl::InternalError("a listener has disappeared");
  return end->port;
}

int BindClosedPort(const std::string& address) {
  sockaddr_storage storage{};
  auto& in = reinterpret_cast<sockaddr_in&>(storage);
  auto& in6 = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, address.c_str(), &in.sin_addr) == 1) {
    storage.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, address.c_str(), &in6.sin6_addr) == 1) {
    storage.ss_family = AF_INET6;
  } else {
    return -1;
  }
  int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&storage), sizeof storage) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

uint16_t ClosedPortAcross(int connection, const std::vector<TcpEnd>& peers) {
  std::optional<TcpEnd> remote = PeerEnd(connection);
  for (const TcpEnd& peer : peers) {
    if (remote.has_value() && peer.address == remote->address && peer.closed_port != 0) return peer.closed_port;
  }
  return 0;
}

absl::StatusOr<std::vector<int>> DuplicateConnections(const TcpEnd& own, const std::vector<TcpEnd>& peers) {
  std::vector<int> duplicates;
  absl::Status duplicate_error;
  absl::Status status = ForEachDescriptor([&](int fd) {
    std::optional<TcpEnd> local = LocalEnd(fd), remote = PeerEnd(fd);
    if (!local.has_value() || !remote.has_value()) return;  // Not TCP, or not connected: a listener.
    bool is_of_group = local->port == own.port;
    for (const TcpEnd& peer : peers)
      is_of_group = is_of_group || (remote->port == peer.port && remote->address == peer.address);
    if (!is_of_group) return;
    int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0) {
      duplicate_error.Update(ErrnoStatus(errno, "cannot duplicate a connection's descriptor"));
    } else {
      duplicates.push_back(duplicate);
    }
  });
  status.Update(duplicate_error);
  if (!status.ok()) {
    for (int fd : duplicates) close(fd);
    return status;
  }
  return duplicates;
}

}  // namespace trainyard
