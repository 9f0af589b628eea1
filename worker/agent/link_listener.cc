#include "worker/agent/link_listener.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/limits.h"

namespace trainyard::agent {
namespace {

constexpr int kOutOfDescriptorsWaitMs = 50;

std::string FolderOf(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

bool IsExhausted(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

LinkListener::LinkListener() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::shared_ptr<LinkListener>> LinkListener::Listen(const LinkListenerOptions& options) {
  auto listener = std::shared_ptr<LinkListener>(new LinkListener);
  absl::MutexLock lock(&listener->mu_);
  std::vector<std::string> problems;
  for (const std::string& path : options.candidates) {
    Socket socket{.path = path};
    absl::Status opened = listener->Open(socket);
    if (!opened.ok()) {
      problems.emplace_back(opened.message());
      continue;
    }
    listener->path_ = path;
    listener->sockets_.push_back(std::move(socket));
    break;
  }
  if (listener->sockets_.empty()) return absl::UnavailableError(absl::StrJoin(problems, "; "));
  for (const std::string& path : options.earlier) {
    if (path == listener->path_) continue;
    Socket socket{.path = path};
    listener->Open(socket).IgnoreError();  // Recreate tries again
    listener->sockets_.push_back(std::move(socket));
  }
  return listener;
}

LinkListener::~LinkListener() {
  Stop();
  close(wake_fd_);
}

absl::Status LinkListener::Open(Socket& socket) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.path.size() > limits::kSocketPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path ", socket.path, " is longer than ", limits::kSocketPathBytes, " bytes"));
  }
  std::memcpy(address.sun_path, socket.path.data(), socket.path.size());
  if (absl::Status own = MakePrivateFolder(FolderOf(socket.path)); !own.ok()) return own;
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "cannot make a socket");
  // Remove nothing but a socket: paths of earlier incarnations come from launch records, which may name a user's file.
  struct stat found = {};
  if (lstat(socket.path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) unlink(socket.path.c_str());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(fd, SOMAXCONN) != 0) {
    absl::Status failed = ErrnoStatus(errno, absl::StrCat("cannot listen at ", socket.path));
    close(fd);
    return failed;
  }
  if (socket.fd >= 0) replaced_.push_back(socket.fd);
  socket.fd = fd;
  socket.id = IdOf(socket.path).value_or(FileId{});
  return absl::OkStatus();
}

// Keeps the path if another daemon has opened its own socket there meanwhile.
void LinkListener::Remove(Socket& socket) {
  if (socket.fd < 0) return;
  if (IdOf(socket.path) == socket.id) unlink(socket.path.c_str());
  close(socket.fd);
  socket.fd = -1;
}

absl::StatusOr<bool> LinkListener::Recreate() {
  absl::MutexLock lock(&mu_);
  if (stopping_) return false;
  bool any = false;
  absl::Status main_socket;
  for (Socket& socket : sockets_) {
    if (socket.fd >= 0 && IdOf(socket.path) == socket.id) continue;
    absl::Status opened = Open(socket);
    any = any || opened.ok();
    if (!opened.ok() && socket.path == path_) main_socket = std::move(opened);
  }
  if (any) eventfd_write(wake_fd_, 1);
  if (main_socket.ok()) return any;
  return absl::UnavailableError(absl::StrCat("its socket ", path_, " is gone (", main_socket.message(), ")"));
}

void LinkListener::Start(Accept accept) {
  accept_ = std::move(accept);
  thread_ = std::thread([this] { Run(); });
}

void LinkListener::Stop() {
  stopping_ = true;
  if (thread_.joinable()) {
    eventfd_write(wake_fd_, 1);
    thread_.join();
  }
  absl::MutexLock lock(&mu_);
  for (Socket& socket : sockets_) Remove(socket);
  for (int fd : std::exchange(replaced_, {})) close(fd);
}

std::vector<int> LinkListener::Listeners() {
  absl::MutexLock lock(&mu_);
  for (int fd : std::exchange(replaced_, {})) close(fd);
  std::vector<int> fds;
  for (const Socket& socket : sockets_) {
    if (socket.fd >= 0) fds.push_back(socket.fd);
  }
  return fds;
}

void LinkListener::Run() {
  bool exhausted = false;
  while (!stopping_) {
    const std::vector<int> listeners = Listeners();
    std::vector<pollfd> polled{{.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    for (int fd : listeners) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
    // While the process has no free descriptor, accepting fails and the listeners stay readable, so polling them would
    // return immediately. Sleep for a while instead.
    poll(polled.data(), exhausted ? 1 : polled.size(), exhausted ? kOutOfDescriptorsWaitMs : -1);
    eventfd_t count;
    if (polled[0].revents != 0) eventfd_read(wake_fd_, &count);
    const bool retry_all = std::exchange(exhausted, false);
    for (size_t i = 1; i < polled.size() && !stopping_; ++i) {
      if (retry_all || polled[i].revents != 0) exhausted = !AcceptFrom(polled[i].fd) || exhausted;
    }
  }
}

bool LinkListener::AcceptFrom(int listener_fd) {
  while (true) {
    const int fd = accept4(listener_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      accept_(listener_fd, fd);
    } else if (IsExhausted(errno)) {
      return false;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return true;
    }
  }
}

}  // namespace trainyard::agent
