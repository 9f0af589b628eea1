#include "client/interrupts.h"

#include <unistd.h>

#include <utility>
#include <vector>

namespace trainyard::client {

Interrupts::Interrupts(std::function<void()> on_second) : fd_(NewInterruptFd()), on_second_(std::move(on_second)) {
  thread_ = std::make_unique<PollThread>(std::vector<PollThread::Watch>{{.fd = fd_, .on_ready = [this] {
                                                                           Take();
                                                                           return true;
                                                                         }}});
}

Interrupts::~Interrupts() {
  thread_.reset();
  if (fd_ >= 0) close(fd_);
}

void Interrupts::Take() {
  while (TakeInterrupt(fd_) != 0) {
    int count = 0;
    {
      absl::MutexLock lock(&mu_);
      count = ++count_;
    }
    if (count > 1) {
      on_second_();
      continue;
    }
    absl::MutexLock lock(&acting_mu_);
    if (on_first_) on_first_();
  }
}

void Interrupts::OnFirst(std::function<void()> on_first) {
  absl::MutexLock lock(&acting_mu_);
  on_first_ = std::move(on_first);
  if (on_first_ && interrupted()) on_first_();
}

bool Interrupts::interrupted() const {
  absl::MutexLock lock(&mu_);
  return count_ > 0;
}

}  // namespace trainyard::client
