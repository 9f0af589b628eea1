#include "worker/trainer/kernel_timer.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "worker/trainer/kernel_budget.h"

namespace trainyard {
namespace {

constexpr size_t kMessageBytes = 4096;  // of a list of shapes, and of a list of seconds

#ifdef __SANITIZE_THREAD__
constexpr size_t kMaxThreads = 2;  // the sanitizer has a thread of its own
#else
constexpr size_t kMaxThreads = 1;
#endif

absl::Time Now() { return Clock::GetSteadyClock().TimeNow(); }

// A pair of sockets, because a write to a pipe without a reader could end this process.
struct Pipe {
  ~Pipe() {
    for (int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  int read_end() { return std::exchange(ends[0], -1); }
  int write_end() { return std::exchange(ends[1], -1); }
  int ends[2] = {-1, -1};
};

// Reads a pipe until its end.
absl::StatusOr<std::string> ReadAll(int fd, absl::Time deadline) {
  std::string text;
  while (text.size() <= kMessageBytes) {
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const absl::Duration left = deadline - Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("timing the kernels did not end in time");
    const int wait_ms = left == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    if (poll(&polled, 1, wait_ms) < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot wait for a pipe");
    if (polled.revents == 0) continue;
    char bytes[256];
    const ssize_t size = read(fd, bytes, sizeof bytes);
    if (size < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot read a pipe");
    if (size == 0) return text;
    if (size > 0) text.append(bytes, static_cast<size_t>(size));
  }
  return absl::InternalError(absl::StrCat("a pipe held more than ", kMessageBytes, " bytes"));
}

// A pipe holds the whole text, so this does not block. After an error the reader gets less than the whole text.
void WriteAndClose(int fd, const std::string& text) {
  while (send(fd, text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
  close(fd);
}

// Kills this process when its parent ends, which may have happened already.
void EndWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

// Runs in the process that waits for the shapes. Then forks once more: the child times the kernels that MKL uses with
// the lever (kernel_choice.h), and this process those without it. Never returns.
[[noreturn]] void RunTimer(int requests, Pipe& with_lever, Pipe& without, const KernelTimer::TimeShapes& time_shapes) {
  const absl::StatusOr<std::string> text = ReadAll(requests, absl::InfiniteFuture());
  if (!text.ok() || text->empty()) _exit(0);
  const absl::StatusOr<std::vector<ProductShape>> shapes = ParseShapes(*text);
  if (!shapes.ok()) _exit(1);
  const pid_t self = getpid(), other = fork();
  if (other < 0) _exit(1);
  if (other == 0) EndWithParent(self);
  const bool uses_lever = other == 0;
  Pipe& mine = uses_lever ? with_lever : without;
  close((uses_lever ? without : with_lever).write_end());
  try {
    WriteAndClose(mine.write_end(), absl::StrJoin(time_shapes(uses_lever, *shapes), " "));
  } catch (const std::exception&) {
    _exit(1);  // the reader finds nothing
  }
  while (other > 0 && waitpid(other, nullptr, 0) < 0 && errno == EINTR) {
  }
  _exit(0);
}

absl::StatusOr<std::vector<double>> SecondsIn(const std::string& text, size_t count) {
  std::vector<double> seconds;
  for (const absl::string_view field : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    double number = 0;
    if (!absl::SimpleAtod(field, &number) || !(number >= 0)) break;
    seconds.push_back(number);
  }
  if (seconds.size() == count) return seconds;
  return absl::InternalError(absl::StrCat("a process that times kernels ended with the output '", text, "', expected ",
                                          count, " numbers of seconds"));
}

size_t NumThreads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelTimer>> KernelTimer::Start(TimeShapes time_shapes) {
  if (const size_t threads = NumThreads(); threads > kMaxThreads) {
    return absl::FailedPreconditionError(
        absl::StrCat("kernels can be timed only before the process has several threads, and it has ", threads));
  }
  Pipe requests, with_lever, without;
  for (Pipe* pipe : {&requests, &with_lever, &without}) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pipe->ends) != 0) {
      return ErrnoStatus(errno, "cannot create a pipe");
    }
  }
  const pid_t parent = getpid(), process = fork();
  if (process < 0) return ErrnoStatus(errno, "cannot start a process that times kernels");
  if (process == 0) {
    EndWithParent(parent);
    close(requests.write_end());
    RunTimer(requests.read_end(), with_lever, without, time_shapes);
  }
  return std::unique_ptr<KernelTimer>(
      new KernelTimer(process, requests.write_end(), with_lever.read_end(), without.read_end()));
}

KernelTimer::~KernelTimer() {
  if (requests_ >= 0) close(requests_);
  close(with_lever_);
  close(without_);
  kill(process_, SIGKILL);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::StatusOr<KernelSpeeds> KernelTimer::Measure(const std::vector<ProductShape>& shapes, absl::Duration limit) {
  const absl::Time start = Now();
  WriteAndClose(std::exchange(requests_, -1), ShapesText(shapes));
  ASSIGN_OR_RETURN(const std::string without, ReadAll(without_, start + limit));
  ASSIGN_OR_RETURN(const std::string with_lever, ReadAll(with_lever_, start + limit));
  ASSIGN_OR_RETURN(const std::vector<double> without_s, SecondsIn(without, shapes.size()));
  ASSIGN_OR_RETURN(const std::vector<double> with_lever_s, SecondsIn(with_lever, shapes.size()));
  const TwoSpeeds speeds = SpeedsOfAll(shapes, with_lever_s, without_s);
  if (!(speeds.with_lever > 0)) return absl::InternalError("no product was timed with both kinds of kernels");
  return KernelSpeeds{.with_lever = speeds.with_lever,
                      .without = speeds.without,
                      .measured_ms = absl::ToDoubleMilliseconds(Now() - start)};
}

}  // namespace trainyard
