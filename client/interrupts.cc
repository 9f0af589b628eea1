#include "client/interrupts.h"

#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace trainyard::client {
namespace {

int NewInterruptFd() {
  sigset_t set = InterruptSet();
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Reads one signal; 0: there is none.
int ReadSignal(int fd) {
  signalfd_siginfo info;
  if (read(fd, &info, sizeof info) != sizeof info) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

void BlockSignals() {
  sigset_t set = InterruptSet();
  sigaddset(&set, SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Interrupts::Interrupts(std::function<void()> on_second) : fd_(NewInterruptFd()), on_second_(std::move(on_second)) {
  thread_ = std::make_unique<PollThread>(std::vector<PollThread::Watch>{{.fd = fd_, .on_ready = [this] {
                                                                           HandleSignals();
                                                                           return true;
                                                                         }}});
}

Interrupts::~Interrupts() {
  thread_.reset();
  if (fd_ >= 0) close(fd_);
}

void Interrupts::HandleSignals() {
  while (int signal = ReadSignal(fd_)) {
    if (signal == SIGHUP) {
      absl::MutexLock lock(&callback_mu_);
      if (on_hangup_) {
        on_hangup_();
        continue;
      }
    }
    HandleInterrupt();
  }
}

void Interrupts::HandleInterrupt() {
  int count = 0;
  {
    absl::MutexLock lock(&mu_);
    count = ++count_;
  }
  if (count > 1) {
    on_second_();
    return;
  }
  absl::MutexLock lock(&callback_mu_);
  if (on_first_) on_first_();
}

void Interrupts::OnFirst(std::function<void()> on_first) {
  absl::MutexLock lock(&callback_mu_);
  on_first_ = std::move(on_first);
  if (on_first_ && interrupted()) on_first_();
}

void Interrupts::OnHangup(std::function<void()> on_hangup) {
  absl::MutexLock lock(&callback_mu_);
  on_hangup_ = std::move(on_hangup);
}

bool Interrupts::interrupted() const {
  absl::MutexLock lock(&mu_);
  return count_ > 0;
}

}  // namespace trainyard::client
