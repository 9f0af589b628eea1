#include "client/poll_thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace trainyard::client {
namespace {

sigset_t Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  return set;
}

}  // namespace

PollThread::PollThread(std::vector<Watch> watches)
    : watches_(std::move(watches)), stop_fd_(eventfd(0, EFD_CLOEXEC)), thread_([this] { Loop(); }) {}

PollThread::~PollThread() {
  const uint64_t one = 1;
  // An eventfd that was never written takes a write at once.
  [[maybe_unused]] ssize_t written = write(stop_fd_, &one, sizeof one);
  thread_.join();
  close(stop_fd_);
}

void PollThread::Loop() {
  while (true) {
    std::vector<pollfd> fds = {{.fd = stop_fd_, .events = POLLIN, .revents = 0}};
    for (const Watch& watch : watches_) fds.push_back({.fd = watch.fd, .events = POLLIN, .revents = 0});
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    std::vector<Watch> kept;
    for (size_t i = 0; i < watches_.size(); ++i) {
      if (fds[i + 1].revents == 0 || watches_[i].on_ready()) kept.push_back(watches_[i]);
    }
    watches_ = std::move(kept);
  }
}

void BlockSignals() {
  sigset_t set = Interrupts();
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int NewInterruptFd() {
  sigset_t set = Interrupts();
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int TakeInterrupt(int fd) {
  signalfd_siginfo info;
  if (read(fd, &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace trainyard::client
