#include "coordinator/rpc/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/listeners.h"
#include "common/status_macros.h"
#include "common/user.h"

namespace trainyard {
namespace {

constexpr char kMoreDescriptors[] = "; raise the hard limit (ulimit -Hn, LimitNOFILE=)";

constexpr int kOutOfDescriptorsWaitMs = 50;
constexpr absl::Duration kWarnInterval = absl::Minutes(1);

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

uint16_t PortOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(storage).sin_port);
}

// Returns a listening socket at the address with port `port`, or -1 and errno.
int ListenAt(const addrinfo& at, uint16_t port) {
  sockaddr_storage storage{};
  std::memcpy(&storage, at.ai_addr, at.ai_addrlen);
  if (at.ai_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  if (at.ai_family == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  int fd = socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  // With this option, connections left by an earlier process do not prevent bind; another listener does.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&storage), at.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

rlim_t DescriptorsForConnections(rlim_t limit) { return limit - std::min(kDescriptorsReserved, limit / 4); }

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const HostPort& address, Options options) {
  // "0.0.0.0" means every address, including IPv6, as in gRPC.
  const std::string host = address.host == "0.0.0.0" ? "::" : std::string(address.host);
  auto acceptor = std::unique_ptr<Acceptor>(new Acceptor(std::move(options)));
  acceptor->port_ = static_cast<uint16_t>(address.port);
  int error = 0;
  for (const std::string& name : {host, std::string(address.host)}) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (int code = getaddrinfo(name.c_str(), nullptr, &hints, &found); code != 0) {
      if (name != address.host) continue;
      return absl::InvalidArgumentError(absl::StrCat("listen address ", address.host, ": ", gai_strerror(code)));
    }
    absl::Cleanup free_found = [found] { freeaddrinfo(found); };
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      int fd = ListenAt(*at, acceptor->port_);
      if (fd < 0) {
        error = errno;
        if (error == EADDRINUSE) break;
        continue;
      }
      acceptor->listeners_.push_back(fd);
      acceptor->port_ = PortOf(fd);
    }
    if (!acceptor->listeners_.empty() || error == EADDRINUSE) break;
  }
  const std::string text = absl::StrCat("cannot listen on ", address.host, ":", address.port, ": ", strerror(error));
  if (error == EADDRINUSE) return absl::UnavailableError(text);
  if (acceptor->listeners_.empty()) return absl::InvalidArgumentError(text);
  acceptor->stop_fd_ = eventfd(0, EFD_CLOEXEC);
  return acceptor;
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::ListenUnix(const std::string& path, Options options) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() > limits::kSocketPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path '", path, "' must have 1 to ", limits::kSocketPathBytes, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot listen on unix:", path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  // If the socket exists but no process accepts connections there, the process that created it has exited.
  if (connect(fd, at, sizeof address) == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on unix:", path, ": another program listens there"));
  }
  struct stat info;
  if (errno == EAGAIN) {
    return absl::UnavailableError(absl::StrCat("cannot listen on unix:", path,
                                               ": another program listens there, and its queue of clients is full"));
  }
  if (errno == ECONNREFUSED && lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) unlink(path.c_str());
  // Admit refuses a client that connects before the mode is set.
  if (bind(fd, at, sizeof address) != 0 || chmod(path.c_str(), options.any_user ? 0666 : 0600) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on unix:", path, ": ", strerror(errno)));
  }
  std::move(close_fd).Cancel();
  auto acceptor = std::unique_ptr<Acceptor>(new Acceptor(std::move(options)));
  acceptor->listeners_ = {fd};
  acceptor->path_ = path;
  acceptor->stop_fd_ = eventfd(0, EFD_CLOEXEC);
  return acceptor;
}

std::vector<std::string> Acceptor::addresses() const {
  std::vector<std::string> texts;
  for (int fd : listeners_) {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) continue;
    if (std::string text = NumericAddress(storage); !text.empty()) texts.push_back(std::move(text));
  }
  return texts;
}

Acceptor::~Acceptor() {
  Stop();
  if (stop_fd_ >= 0) close(stop_fd_);
}

void Acceptor::Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to) {
  grpc_acceptor_ = std::move(to);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    eventfd_write(stop_fd_, 1);
    thread_.join();
  }
  if (!listeners_.empty() && !path_.empty()) unlink(path_.c_str());
  for (int fd : std::exchange(listeners_, {})) close(fd);
}

void Acceptor::Run() {
  std::vector<pollfd> polled{{.fd = stop_fd_, .events = POLLIN, .revents = 0}};
  for (int fd : listeners_) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  bool exhausted = false;
  while (true) {
    // Without a free descriptor the listener stays readable: wait for time to pass, or for Stop.
    poll(polled.data(), exhausted ? 1 : polled.size(), exhausted ? kOutOfDescriptorsWaitMs : -1);
    if (polled[0].revents != 0) return;
    const bool retry_all = std::exchange(exhausted, false);
    for (size_t i = 1; i < polled.size(); ++i) {
      if (retry_all || polled[i].revents != 0) exhausted = !AcceptFrom(polled[i].fd) || exhausted;
    }
  }
}

bool Acceptor::AcceptFrom(int listener) {
  while (true) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        ReportRefusal(absl::StrCat("cannot accept a connection now: ", strerror(errno), kMoreDescriptors));
        return false;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EBADF || errno == EINVAL) return true;
      continue;  // the client has already disconnected
    }
    if (!Admit(fd)) {
      close(fd);
      continue;
    }
    if (path_.empty()) {
      SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
      SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(absl::ToInt64Milliseconds(options_.user_timeout)));
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters accepted;
    accepted.listener_fd = listener;
    accepted.fd = fd;
    grpc_acceptor_->HandleNewConnection(&accepted);
  }
}

bool Acceptor::Admit(int fd) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd) >= DescriptorsForConnections(limit.rlim_cur)) {
    ReportRefusal(absl::StrCat(
        "a connection was refused: of the ", limit.rlim_cur, " descriptors that this process may open, all ",
        DescriptorsForConnections(limit.rlim_cur), " for connections are in use", kMoreDescriptors));
    return false;
  }
  if (path_.empty() || options_.any_user) return true;
  ucred peer = {};
  socklen_t size = sizeof peer;
  const bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (known && (peer.uid == geteuid() || peer.uid == 0)) return true;
  ReportRefusal(
      absl::StrCat("a connection to ", path_, " by user ", known ? UserText(peer.uid) : "unknown", " was refused"));
  return false;
}

void Acceptor::ReportRefusal(const std::string& why) {
  ++unreported_refusals_;
  const absl::Time now = Clock::GetSteadyClock().TimeNow();
  if (options_.warn == nullptr || now - warned_at_ < kWarnInterval) return;
  warned_at_ = now;
  options_.warn(absl::StrCat(why, " (", std::exchange(unreported_refusals_, 0), " since the last such message)"));
}

}  // namespace trainyard
