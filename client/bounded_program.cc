#include "client/bounded_program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/process.h"
#include "client/text.h"
#include "common/files.h"
#include "common/status_macros.h"

extern char** environ;

namespace trainyard::client {
namespace {

constexpr size_t kProgramOutputBytes = 1 << 20;
constexpr size_t kErrorBytes = 500;
constexpr absl::Duration kReapWait = absl::Milliseconds(200);
// A process that the program has started may keep the output of the program open. Once the program has exited, the
// output is read for this long.
constexpr absl::Duration kLastOutputWait = absl::Milliseconds(200);
constexpr absl::Duration kExitPoll = absl::Milliseconds(50);

// A pipe from the program.
struct OutputPipe {
  OutputPipe() = default;
  OutputPipe(const OutputPipe&) = delete;
  ~OutputPipe() {
    for (int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  void CloseEnd(int end) {
    if (ends[end] >= 0) close(std::exchange(ends[end], -1));
  }

  int ends[2] = {-1, -1};
  std::string text;
};

absl::StatusOr<pid_t> StartProgram(std::vector<std::string> command, const OutputPipe& out, const OutputPipe& errors) {
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  absl::Cleanup destroy_actions = [&actions] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors.ends[1], STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  absl::Cleanup destroy_attributes = [&attributes] { posix_spawnattr_destroy(&attributes); };
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);  // trainctl ignores SIGPIPE, but the program must not
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", command[0]));
  return pid;
}

// Reads what is available; at the end of the output, closes the reading end of the pipe.
absl::Status ReadSome(OutputPipe* pipe) {
  char bytes[4096];
  const ssize_t size = read(pipe->ends[0], bytes, sizeof bytes);
  if (size > 0) pipe->text.append(bytes, static_cast<size_t>(size));
  if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) pipe->CloseEnd(0);
  if (pipe->text.size() <= kProgramOutputBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError("it wrote more than 1 MiB");
}

// Returns whether the process has exited, without reaping it.
bool HasExited(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

absl::Status ReadBoth(pid_t pid, OutputPipe* out, OutputPipe* errors, absl::Time deadline) {
  absl::Time until = absl::InfiniteFuture();
  while (out->ends[0] >= 0 || errors->ends[0] >= 0) {
    const absl::Time now = absl::Now();
    if (now >= until) return absl::OkStatus();
    if (now >= deadline) return absl::DeadlineExceededError("it did not end");
    if (until == absl::InfiniteFuture() && HasExited(pid)) until = now + kLastOutputWait;
    const absl::Duration left = std::min({deadline - now, until - now, kExitPoll});
    pollfd polled[2] = {{.fd = out->ends[0], .events = POLLIN, .revents = 0},
                        {.fd = errors->ends[0], .events = POLLIN, .revents = 0}};
    if (poll(polled, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "cannot wait for its output");
    }
    for (const auto& [revents, pipe] : {std::pair(polled[0].revents, out), std::pair(polled[1].revents, errors)}) {
      if (revents == 0) continue;
      RETURN_IF_ERROR(ReadSome(pipe));
    }
  }
  return absl::OkStatus();
}

// Returns the status of waitpid; -1: the process has not ended by `deadline`.
int Reap(pid_t pid, absl::Time deadline) {
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if ((ended < 0 && errno != EINTR) || absl::Now() >= deadline) return -1;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace

absl::StatusOr<std::string> OutputOfProgram(const std::vector<std::string>& command, absl::Duration limit) {
  OutputPipe out, errors;
  if (pipe2(out.ends, O_CLOEXEC) != 0 || pipe2(errors.ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "cannot create a pipe");
  }
  const absl::Time deadline = absl::Now() + limit;
  ASSIGN_OR_RETURN(const pid_t pid, StartProgram(command, out, errors));
  out.CloseEnd(1);
  errors.CloseEnd(1);
  absl::Status read = ReadBoth(pid, &out, &errors, deadline);
  if (read.ok() && (out.ends[0] >= 0 || errors.ends[0] >= 0)) kill(-pid, SIGKILL);  // processes that it has left behind
  const int status = read.ok() ? Reap(pid, deadline) : -1;
  if (status < 0) {
    kill(-pid, SIGKILL);
    Reap(pid, absl::Now() + kReapWait);
    if (read.ok()) read = absl::DeadlineExceededError("it did not end");
  }
  if (absl::IsDeadlineExceeded(read)) {
    return absl::DeadlineExceededError(
        absl::StrCat(command[0], " did not end within ", absl::FormatDuration(limit), " and was killed"));
  }
  if (!read.ok()) return absl::Status(read.code(), absl::StrCat(command[0], ": ", read.message()));
  if (status == 0) return out.text;
  const std::string text(absl::StripAsciiWhitespace(errors.text));
  const std::string end = text.size() > kErrorBytes ? text.substr(text.size() - kErrorBytes) : text;
  return absl::InternalError(
      absl::StrCat(command[0], " failed: ", ExitText(status), end.empty() ? "" : ": ", Printable(end, kErrorBytes)));
}

}  // namespace trainyard::client
