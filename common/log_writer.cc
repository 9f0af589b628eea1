#include "common/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace trainyard {
namespace {

// Blocks all signals on the new thread, because SIGTERM must reach the thread of the program that waits for it, and a
// pipe without a reader must be an error of write().
std::thread StartWithoutSignals(std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

LogWriter::LogWriter(Options options)
    : options_(std::move(options)), thread_(StartWithoutSignals([this] { Loop(); })) {}

LogWriter::~LogWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void LogWriter::Push(std::string line) {
  absl::MutexLock lock(&mu_);
  // Once a line is dropped, later lines are dropped too, even if they would fit, so that the line with the count is at
  // the gap. The thread must also report the gap if the queue is empty, because the line is longer than the queue.
  if (missing_ > 0 || bytes_ + line.size() > options_.queue_bytes) {
    idle_ = false;
    ++missing_;
    ++dropped_;
    changed_.SignalAll();
    return;
  }
  idle_ = false;
  bytes_ += line.size();
  lines_.push_back(std::move(line));
  changed_.SignalAll();
}

bool LogWriter::Flush(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  return changed_.AwaitFor(&mu_, limit,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !HasWork() && !writing_; });
}

void LogWriter::Loop() {
  const auto must_wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return HasWork() || stopping_; };
  uint64_t unreported = 0;  // lost lines that the log does not mention yet
  const auto report_dropped = [&] {
    if (unreported > 0 && Write(options_.format_dropped(unreported))) unreported = 0;
    return unreported == 0;
  };
  while (true) {
    std::vector<std::string> lines;
    uint64_t missing = 0;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(), must_wake);
      if (!HasWork()) return;
      lines.swap(lines_);
      bytes_ = 0;
      std::swap(missing, missing_);
      writing_ = true;
    }
    for (const std::string& line : lines) {
      if (report_dropped() && Write(line)) continue;
      ++unreported;
      ++dropped_;
    }
    unreported += missing;
    report_dropped();
    absl::MutexLock lock(&mu_);
    writing_ = false;
    idle_ = !HasWork();
    changed_.SignalAll();
  }
}

bool LogWriter::Write(const std::string& text) const {
  if (options_.write) return options_.write(text);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(options_.fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      // Another process that shares the descriptor has made it non-blocking.
      pollfd writable = {.fd = options_.fd, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
      continue;
    }
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace trainyard
