#include "worker/shim/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace trainyard::shim {
namespace {

// Reads /proc/<pid>/stat. Returns the last closing parenthesis, which field 3 follows: the name is in parentheses and
// may hold any byte. Null: there is no such process.
char* ReadStat(pid_t pid, char (&text)[1024]) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return nullptr;
  text[n] = '\0';
  return strrchr(text, ')');
}

// Returns field `index` of /proc/<pid>/stat, counted as in proc(5), for fields after the name; 0 if there is none.
uint64_t StatField(pid_t pid, int index) {
  char text[1024];
  char* at = ReadStat(pid, text);
  if (at == nullptr) return 0;
  for (int field = 2; field < index; ++field) {
    at = strchr(at + 1, ' ');
    if (at == nullptr) return 0;
  }
  return strtoull(at + 1, nullptr, 10);
}

// Calls `visit` with the pid of each process but the first.
template <typename Visit>
void ForEachProcess(const Visit& visit) {
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return;
  while (struct dirent* entry = readdir(proc)) {
    const pid_t pid = atoi(entry->d_name);
    if (pid > 1) visit(pid);
  }
  closedir(proc);
}

void KillChildren() {
  const pid_t self = getpid();
  ForEachProcess([self](pid_t pid) {
    // Field 4 is the pid of the parent.
    if (StatField(pid, 4) == static_cast<uint64_t>(self)) kill(pid, SIGKILL);
  });
}

// `numbers`: "0 2". Returns false with errno set.
bool SetCpus(const char* numbers) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const char* at = numbers; *at != '\0';) {
    char* end;
    const unsigned long cpu = strtoul(at, &end, 10);
    if (end == at || cpu >= CPU_SETSIZE) {
      errno = EINVAL;
      return false;
    }
    CPU_SET(cpu, &set);
    at = *end == ' ' ? end + 1 : end;
  }
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

// Runs in the child. Never returns; writes which call failed ('s': the setup, 'c': sched_setaffinity, 'd': chdir, 'x':
// execve) and errno to `report`.
[[noreturn]] void BecomeTrainer(const Launch& launch, int stdout_fd, int stderr_fd, int report, pid_t shim) {
  char failed = 's';
  setsid();
  int null = open("/dev/null", O_RDONLY);
  if (null >= 0 && dup2(null, 0) == 0 && dup2(stdout_fd, 1) == 1 && dup2(stderr_fd, 2) == 2) {
    if (null > 2) close(null);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The shim may have exited before the line above; then the kernel would not send the signal.
    if (getppid() != shim) _exit(127);
    for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    failed = 'c';
    if (launch.cpus == nullptr || SetCpus(launch.cpus)) failed = 'd';
    if (failed == 'd' && (launch.workdir == nullptr || chdir(launch.workdir) == 0)) failed = 'x';
    if (failed == 'x') execve(launch.program, launch.arguments, launch.variables);
  }
  int error = errno;
  char message[1 + sizeof error];
  message[0] = failed;
  memcpy(message + 1, &error, sizeof error);
  // If this write fails, the exit code 127 still reports the failure.
  if (write(report, message, sizeof message) < 0) _exit(127);
  _exit(127);
}

}  // namespace

uint64_t StartTime(pid_t pid) { return StatField(pid, 22); }

void KillSession(pid_t leader, uint64_t leader_start) {
  const uint64_t number = static_cast<uint64_t>(leader);
  ForEachProcess([number, leader_start](pid_t pid) {
    // Fields 5 and 6 are the ids of the process group and of the session.
    const bool member = StatField(pid, 5) == number || StatField(pid, 6) == number;
    if (member && StartTime(pid) >= leader_start) kill(pid, SIGKILL);
  });
}

bool HasOthersInGroup(pid_t leader) {
  bool found = false;
  ForEachProcess([leader, &found](pid_t pid) {
    char text[1024];
    const char* at = ReadStat(pid, text);
    char state;  // Z: it has ended, but was not reaped yet
    pid_t group;
    if (at == nullptr || sscanf(at, ") %c %*d %d", &state, &group) != 2) return;
    found = found || (pid != leader && group == leader && state != 'Z' && state != 'X');
  });
  return found;
}

int64_t NowMs(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

pid_t StartTrainer(const Launch& launch, int stdout_fd, int stderr_fd, const char** failed) {
  int report[2];
  *failed = "pipe";
  if (pipe2(report, O_CLOEXEC) != 0) return -1;
  pid_t shim = getpid();
  *failed = "fork";
  pid_t pid = fork();
  if (pid == 0) BecomeTrainer(launch, stdout_fd, stderr_fd, report[1], shim);
  int fork_error = errno;
  close(report[1]);
  char message[1 + sizeof(int)] = {};
  ssize_t n = 0;
  if (pid > 0) {
    // read returns 0 bytes if exec has succeeded, which closes the other end.
    do {
      n = read(report[0], message, sizeof message);
    } while (n < 0 && errno == EINTR);
  }
  close(report[0]);
  if (pid < 0) {
    errno = fork_error;
    return -1;
  }
  if (n != sizeof message) return pid;
  waitpid(pid, nullptr, 0);
  int error;
  memcpy(&error, message + 1, sizeof error);
  switch (message[0]) {
    case 'x':
      *failed = "execve";
      break;
    case 'd':
      *failed = "chdir to its working folder";
      break;
    case 'c':
      *failed = "sched_setaffinity";
      break;
    default:
      *failed = "dup2";
  }
  errno = error;
  return -1;
}

bool EndDescendants(pid_t trainer, int* status, struct rusage* usage, bool* trainer_reaped, int wait_ms) {
  // As long as the trainer is not reaped, its pid cannot become the id of another process group.
  if (!*trainer_reaped) kill(-trainer, SIGKILL);
  int64_t deadline = NowMs(CLOCK_MONOTONIC) + wait_ms;
  while (true) {
    int child_status;
    struct rusage child_usage;
    pid_t pid = wait4(-1, &child_status, WNOHANG, &child_usage);
    if (pid < 0 && errno == ECHILD) return true;
    if (pid == trainer) {
      *status = child_status;
      *usage = child_usage;
      *trainer_reaped = true;
    }
    if (pid > 0) continue;
    KillChildren();
    if (NowMs(CLOCK_MONOTONIC) >= deadline) return false;
    usleep(500);
  }
}

}  // namespace trainyard::shim
