#include "common/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace trainyard {
namespace {

// No signal is taken on the new thread: a program that waits for SIGTERM elsewhere must not be killed by it here, and a
// pipe without a reader is an error of write, not an end.
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
  thread_.join();
}

void LogWriter::Push(std::string line) {
  absl::MutexLock lock(&mu_);
  // After a line that is missing no shorter one slips in, so the count stands where the gap is.
  if (missing_ > 0 || bytes_ + line.size() > options_.queue_bytes) {
    ++missing_;
    ++dropped_;
    return;
  }
  idle_ = false;
  bytes_ += line.size();
  lines_.push_back(std::move(line));
}

bool LogWriter::Flush(absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto written = [this] {
    mu_.AssertReaderHeld();
    return lines_.empty() && !writing_;
  };
  return mu_.AwaitWithTimeout(absl::Condition(&written), limit);
}

void LogWriter::Loop() {
  const auto has_work = [this] {
    mu_.AssertReaderHeld();
    return !lines_.empty() || stopping_;
  };
  uint64_t untold = 0;  // lines missing up to here
  const auto tell = [&] {
    if (untold > 0 && Write(options_.tell_dropped(untold))) untold = 0;
    return untold == 0;
  };
  while (true) {
    std::vector<std::string> lines;
    uint64_t missing = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (lines_.empty()) return;
      lines.swap(lines_);
      bytes_ = 0;
      std::swap(missing, missing_);
      writing_ = true;
    }
    for (const std::string& line : lines) {
      if (tell() && Write(line)) continue;
      ++untold;
      ++dropped_;
    }
    untold += missing;
    tell();
    absl::MutexLock lock(&mu_);
    writing_ = false;
    idle_ = lines_.empty();
  }
}

bool LogWriter::Write(const std::string& text) const {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = write(options_.fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      // A process that shares the descriptor has made it one that does not wait.
      pollfd room = {.fd = options_.fd, .events = POLLOUT, .revents = 0};
      poll(&room, 1, -1);
      continue;
    }
    if (n <= 0) return false;
    written += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace trainyard
