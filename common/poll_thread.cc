#include "common/poll_thread.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace trainyard {

PollThread::PollThread(std::vector<Watch> watches)
    : watches_(std::move(watches)), stop_fd_(eventfd(0, EFD_CLOEXEC)), thread_([this] { Loop(); }) {}

PollThread::~PollThread() {
  const uint64_t one = 1;
  // A write to an eventfd that was never written does not block.
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

}  // namespace trainyard
