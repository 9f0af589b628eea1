// trainyard-shim: the parent process of one trainer.
//
//   trainyard-shim --dir RANK_FOLDER [--lifeline-fd N]
//
// The worker daemon starts the shim and may be replaced while the shim runs, so the two communicate through files in
// the rank folder (records.h). The shim reads the trainer's output, waits for its end, kills any process that the
// trainer leaves behind, and writes how the trainer ended. If SIGTERM has ended the program of a command, the shim lets
// the other processes of its group run for the job's grace period before it kills them. The trainer never outlives the
// shim, because the kernel kills the trainer when the shim exits.
//
// SIGTERM and SIGINT are forwarded to the trainer. The end of the lifeline (a pipe held open by the process that
// started everything; common/lifeline.h) kills the trainer immediately. The shim links only libc, so that it starts in
// a millisecond and stays small.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/lifeline.h"
#include "common/standard_descriptors.h"
#include "worker/shim/fields.h"
#include "worker/shim/output.h"
#include "worker/shim/process.h"
#include "worker/shim/records.h"

namespace trainyard::shim {
namespace {

constexpr size_t kReadBytesPerPoll = 1 << 20;
// After the trainer's end: how long to wait for killed descendants, and for output that another process holds open.
constexpr int kEndWaitMs = 2000;
constexpr int kDrainWaitMs = 100;
// How often to try again to write the pids, for example while the disk is full.
constexpr int kPidRetryMs = 1000;
// After SIGTERM has ended the trainer: how often to check whether the others in its group, which may save, have ended.
constexpr int kGroupPollMs = 50;
constexpr char kExitTemporary[] = "exit.tmp";

struct Options {
  const char* folder = nullptr;
  int lifeline = -1;
};

[[noreturn]] void ExitWithError(const char* what, const char* why) {
  fprintf(stderr, "trainyard-shim: %s: %s\n", what, why);
  _exit(2);
}

constexpr char kUsage[] = "usage: trainyard-shim --dir RANK_FOLDER [--lifeline-fd N]";

Options ParseOptions(int argc, char** argv) {
  Options options;
  if (argc > 1 && strcmp(argv[1], "--help") == 0) {
    puts(kUsage);
    exit(0);
  }
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && strcmp(argv[i], "--dir") == 0) {
      options.folder = argv[i + 1];
    } else if (i + 1 < argc && strcmp(argv[i], "--lifeline-fd") == 0) {
      options.lifeline = atoi(argv[i + 1]);
    } else {
      ExitWithError(argv[i], kUsage);
    }
  }
  if (options.folder == nullptr) ExitWithError("--dir", "is missing");
  return options;
}

// Reads the launch record and locks it as long as this process runs, so that a rank folder has at most one shim and a
// daemon can check whether it has one.
size_t ReadLaunchFile(char* buffer, size_t capacity) {
  int fd = open(kLaunchFile, O_RDONLY | O_CLOEXEC);
  if (fd < 0) ExitWithError(kLaunchFile, strerror(errno));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) ExitWithError(kLaunchFile, "locked: another shim runs in this folder");
  if (access(kExitFile, F_OK) == 0) ExitWithError(kExitFile, "exists already: this rank has ended");
  size_t size = 0;
  ssize_t n;
  while (size < capacity && (n = read(fd, buffer + size, capacity - size)) != 0) {
    if (n < 0 && errno != EINTR) ExitWithError(kLaunchFile, strerror(errno));
    if (n > 0) size += static_cast<size_t>(n);
  }
  if (size == 0 || size == capacity || buffer[size - 1] != '\0') ExitWithError(kLaunchFile, "is not a launch record");
  return size;
}

Launch ParseLaunch(char* data, size_t size) {
  Launch launch;
  size_t fields = 0;
  for (size_t i = 0; i < size; ++i) fields += data[i] == '\0';
  launch.arguments = static_cast<char**>(calloc(fields + 1, sizeof(char*)));
  launch.variables = static_cast<char**>(calloc(fields + 1, sizeof(char*)));
  if (launch.arguments == nullptr || launch.variables == nullptr) ExitWithError(kLaunchFile, "no memory");
  size_t argument_count = 0;
  size_t variable_count = 0;
  FieldReader reader(data, size);
  const char* name;
  char* value;
  while (reader.Next(&name, &value)) {
    if (strcmp(name, kProgram) == 0) launch.program = value;
    if (strcmp(name, kArgument) == 0) launch.arguments[argument_count++] = value;
    if (strcmp(name, kVariable) == 0) launch.variables[variable_count++] = value;
    if (strcmp(name, kWorkdir) == 0) launch.workdir = value;
    if (strcmp(name, kCpus) == 0) launch.cpus = value;
    if (strcmp(name, kGraceMs) == 0) launch.grace_ms = strtoll(value, nullptr, 10);
    if (strcmp(name, kLogBytes) == 0) launch.log_bytes = strtoull(value, nullptr, 10);
  }
  if (launch.program == nullptr || launch.arguments[0] == nullptr || launch.log_bytes == 0) {
    ExitWithError(kLaunchFile, "lacks the program, an argument or log_bytes");
  }
  return launch;
}

bool WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// Returns whether the daemon can read the pids now. Without them, a later daemon can signal neither trainer nor shim.
bool WritePids(pid_t trainer) {
  char buffer[256];
  FieldWriter writer(buffer, sizeof buffer);
  writer.Number(kShimPid, static_cast<uint64_t>(getpid()));
  writer.Number(kShimStart, StartTime(getpid()));
  writer.Number(kTrainerPid, static_cast<uint64_t>(trainer));
  writer.Number(kTrainerStart, StartTime(trainer));
  int fd = open("pid.tmp", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const bool written = WriteAll(fd, writer.data(), writer.size()) && rename("pid.tmp", kPidFile) == 0;
  close(fd);
  return written;
}

bool IsTemporary(int error) {
  return error == ENOMEM || error == EAGAIN || error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE;
}

// How the trainer ended, or why it did not start.
struct End {
  int status = 0;
  struct rusage usage = {};
  const char* start_failure = nullptr;  // a sentence; null: the trainer was started
  int start_error = 0;                  // errno of the failed call
  uint64_t dropped_bytes = 0;
};

// Writes the record and renames it into place. Returns false if the daemon would not find it there.
bool PublishExit(int fd, const FieldWriter& record) {
  bool written = lseek(fd, 0, SEEK_SET) == 0 && WriteAll(fd, record.data(), record.size()) &&
                 ftruncate(fd, static_cast<off_t>(record.size())) == 0;
  fsync(fd);
  return written && rename(kExitTemporary, kExitFile) == 0;
}

// Used if the rank folder was removed while the trainer ran: creates it again and writes the record there. This needs
// the parent folder, which the daemon recreates.
void PublishExitInNewFolder(const char* folder, const FieldWriter& record) {
  if ((mkdir(folder, 0755) != 0 && errno != EEXIST) || chdir(folder) != 0) return;
  int fd = open(kExitTemporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0) PublishExit(fd, record);
}

void WriteExit(int fd, const char* folder, const End& end, LastLines* lines) {
  static char buffer[kExitRecordBytes];
  FieldWriter writer(buffer, sizeof buffer);
  if (end.start_failure != nullptr) {
    writer.Text(kCause, kCauseStartFailed);
    writer.Text(kMessage, end.start_failure);
    writer.Number(kMayPass, IsTemporary(end.start_error) ? 1 : 0);
  } else if (WIFSIGNALED(end.status)) {
    writer.Text(kCause, kCauseSignal);
    writer.Number(kSignal, static_cast<uint64_t>(WTERMSIG(end.status)));
    writer.Number(kCoreDumped, WCOREDUMP(end.status) ? 1 : 0);
  } else {
    writer.Text(kCause, kCauseExit);
    writer.Number(kCode, static_cast<uint64_t>(WEXITSTATUS(end.status)));
  }
  auto microseconds = [](const struct timeval& t) {
    return static_cast<uint64_t>(t.tv_sec) * 1000000 + static_cast<uint64_t>(t.tv_usec);
  };
  writer.Number(kMaxRssBytes, static_cast<uint64_t>(end.usage.ru_maxrss) * 1024);
  writer.Number(kUserMicroseconds, microseconds(end.usage.ru_utime));
  writer.Number(kSystemMicroseconds, microseconds(end.usage.ru_stime));
  writer.Number(kEndedUnixMs, static_cast<uint64_t>(NowMs(CLOCK_REALTIME)));
  writer.Number(kDroppedBytes, end.dropped_bytes);
  lines->Finish();
  for (unsigned i = 0; i < lines->count(); ++i) {
    size_t size;
    const char* text = lines->line(i, &size);
    writer.Text(kLastLine, text, size);
  }
  if (!PublishExit(fd, writer)) PublishExitInNewFolder(folder, writer);
}

// Creates the file for the exit record and reserves its space on the disk, which may be full when the trainer ends.
int ReserveExitFile() {
  int fd = open(kExitTemporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) ExitWithError(kExitTemporary, strerror(errno));
  // Some file systems refuse this; the record is then written only if there is space when the trainer ends.
  (void)!fallocate(fd, 0, 0, kExitRecordBytes);
  return fd;
}

int BlockSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGTERM);
  sigaddset(&handled, SIGINT);
  sigaddset(&handled, SIGCHLD);
  sigprocmask(SIG_SETMASK, &handled, nullptr);
  // A log file that reaches the process' size limit must cause an error, not kill the shim.
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  return signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Returns whether the trainer has ended, and sets how, without reaping it, so its pid stays reserved until
// EndDescendants has killed its group.
bool HasEnded(pid_t trainer, siginfo_t* how) {
  *how = {};
  return waitid(P_PID, static_cast<id_t>(trainer), how, WEXITED | WNOHANG | WNOWAIT) != 0 || how->si_pid != 0;
}

// Whether SIGTERM has ended the trainer while other processes of its group run. The daemon sends this signal to the
// whole group: a shell ends at once, but the program that the shell has started may save.
bool MayGroupSave(pid_t trainer, const siginfo_t& how) {
  return how.si_code == CLD_KILLED && how.si_status == SIGTERM && HasOthersInGroup(trainer);
}

// Reaps orphans that became children of the shim; the trainer is reaped at the end.
void ReapOrphans(pid_t trainer) {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || info.si_pid == trainer) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void Follow(pid_t trainer, int64_t grace_ms, int signals, int lifeline, Stream* out, Stream* err) {
  bool has_pids = WritePids(trainer);
  int64_t tried_at_ms = NowMs(CLOCK_MONOTONIC);
  int64_t ended_at_ms = -1;  // -1: the trainer runs
  while (true) {
    siginfo_t how;
    if (HasEnded(trainer, &how)) {
      const int64_t now_ms = NowMs(CLOCK_MONOTONIC);
      if (ended_at_ms < 0) ended_at_ms = now_ms;
      // If a daemon runs, it kills the group earlier, because it measures the grace period from SIGTERM.
      if (now_ms - ended_at_ms >= grace_ms || !MayGroupSave(trainer, how)) return;
    }
    if (!has_pids && NowMs(CLOCK_MONOTONIC) - tried_at_ms >= kPidRetryMs) {
      has_pids = WritePids(trainer);
      tried_at_ms = NowMs(CLOCK_MONOTONIC);
    }
    struct pollfd fds[4] = {
        {signals, POLLIN, 0}, {lifeline, POLLIN, 0}, {out->fd(), POLLIN, 0}, {err->fd(), POLLIN, 0}};
    // poll fails while the kernel has no memory for it. The trainer still runs then.
    const int wait_ms = ended_at_ms >= 0 ? kGroupPollMs : has_pids ? -1 : kPidRetryMs;
    if (poll(fds, 4, wait_ms) < 0 && errno != EINTR) usleep(100'000);
    if (fds[0].revents != 0) {
      struct signalfd_siginfo info;
      while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) ReapOrphans(trainer);
        if (info.ssi_signo != SIGCHLD) kill(trainer, static_cast<int>(info.ssi_signo));
      }
    }
    if (fds[1].revents != 0) {
      if (PeekLifeline(lifeline) == Lifeline::kEnded) kill(-trainer, SIGKILL);
      lifeline = -1;
    }
    if (fds[2].revents != 0) out->Read(kReadBytesPerPoll);
    if (fds[3].revents != 0) err->Read(kReadBytesPerPoll);
  }
}

// Reads what is left in the pipes. All descendants have exited, so the pipes end now, unless an unrelated process has
// one open.
void Drain(Stream* out, Stream* err) {
  int64_t deadline = NowMs(CLOCK_MONOTONIC) + kDrainWaitMs;
  while (out->fd() >= 0 || err->fd() >= 0) {
    int64_t remaining_ms = deadline - NowMs(CLOCK_MONOTONIC);
    if (remaining_ms <= 0) return;
    struct pollfd fds[2] = {{out->fd(), POLLIN, 0}, {err->fd(), POLLIN, 0}};
    if (poll(fds, 2, static_cast<int>(remaining_ms)) <= 0) return;
    if (fds[0].revents != 0) out->Read(kReadBytesPerPoll);
    if (fds[1].revents != 0) err->Read(kReadBytesPerPoll);
  }
}

int Run(const Options& options) {
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (chdir(options.folder) != 0) ExitWithError(options.folder, strerror(errno));
  if (options.lifeline >= 0 && fcntl(options.lifeline, F_SETFD, FD_CLOEXEC) != 0)
    ExitWithError("--lifeline-fd", strerror(errno));

  static char record[kLaunchBytesMax];
  Launch launch = ParseLaunch(record, ReadLaunchFile(record, sizeof record));
  int exit_file = ReserveExitFile();
  int signals = BlockSignals();

  static LastLines lines;
  uint64_t file_bytes_max = launch.log_bytes / 4;  // two streams, two files each
  Stream out(0, kStdoutFile, file_bytes_max, &lines);
  Stream err(1, kStderrFile, file_bytes_max, &lines);
  End end;
  int out_pipe[2];
  int err_pipe[2];
  if (pipe2(out_pipe, O_CLOEXEC) != 0 || pipe2(err_pipe, O_CLOEXEC) != 0) ExitWithError("pipe", strerror(errno));
  const char* failed;
  pid_t trainer = StartTrainer(launch, out_pipe[1], err_pipe[1], &failed);
  if (trainer < 0) {
    static char message[4096];
    end.start_error = errno;
    snprintf(message, sizeof message, "cannot start %s%s%s: %s: %s", launch.program,
             launch.workdir == nullptr ? "" : " in ", launch.workdir == nullptr ? "" : launch.workdir, failed,
             strerror(end.start_error));
    end.start_failure = message;
    WriteExit(exit_file, options.folder, end, &lines);
    return 1;
  }
  close(out_pipe[1]);
  close(err_pipe[1]);
  out.Open(out_pipe[0]);
  err.Open(err_pipe[0]);

  Follow(trainer, launch.grace_ms, signals, options.lifeline, &out, &err);
  bool reaped = false;
  EndDescendants(trainer, &end.status, &end.usage, &reaped, kEndWaitMs);
  Drain(&out, &err);
  end.dropped_bytes = out.dropped_bytes() + err.dropped_bytes();
  WriteExit(exit_file, options.folder, end, &lines);
  return 0;
}

}  // namespace
}  // namespace trainyard::shim

int main(int argc, char** argv) { return trainyard::shim::Run(trainyard::shim::ParseOptions(argc, argv)); }
