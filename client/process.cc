#include "client/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/files.h"

extern char** environ;

namespace trainyard::client {
namespace {

// Whether all children are among `others`. REQUIRES: there is a child, so an empty list means that the kernel lists
// none.
bool OnlyOthersRemain(const std::set<pid_t>& others) {
  const std::set<pid_t> children = Children();
  return !children.empty() && std::includes(others.begin(), others.end(), children.begin(), children.end());
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  int output = open(options.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (output < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", options.output_path));
  absl::Cleanup close_output = [output] { close(output); };

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  absl::Cleanup destroy_actions = [&actions] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, output, 2);
  // The descriptors are duplicated to high numbers first, so that no dup2 overwrites the source of another.
  std::vector<int> duplicates;
  absl::Cleanup close_duplicates = [&duplicates] {
    for (int fd : duplicates) close(fd);
  };
  for (const auto& [parent_fd, child_fd] : options.descriptors) {
    int fd = fcntl(parent_fd, F_DUPFD_CLOEXEC, 64);
    if (fd < 0) return ErrnoStatus(errno, "cannot duplicate a descriptor");
    duplicates.push_back(fd);
    posix_spawn_file_actions_adddup2(&actions, fd, child_fd);
  }

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  absl::Cleanup destroy_attributes = [&attributes] { posix_spawnattr_destroy(&attributes); };
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  std::vector<char*> arguments = {const_cast<char*>(options.program.c_str())};
  for (const std::string& argument : options.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  int error = posix_spawn(&pid, options.program.c_str(), &actions, &attributes, arguments.data(), environ);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", options.program));
  return pid;
}

absl::Status AdoptOrphans() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return ErrnoStatus(errno, "cannot become a subreaper");
  return absl::OkStatus();
}

std::set<pid_t> Children() {
  std::set<pid_t> children;
  // A child belongs to the thread that started it, an adopted child to the main thread.
  DIR* threads = opendir("/proc/self/task");
  if (threads == nullptr) return children;
  absl::Cleanup close_threads = [threads] { closedir(threads); };
  while (dirent* entry = readdir(threads)) {
    if (entry->d_name[0] == '.') continue;
    auto list = ReadFile(absl::StrCat("/proc/self/task/", entry->d_name, "/children"));
    if (!list.ok()) continue;
    for (absl::string_view word : absl::StrSplit(*list, ' ', absl::SkipWhitespace())) {
      int pid = 0;
      if (absl::SimpleAtoi(word, &pid)) children.insert(pid);
    }
  }
  return children;
}

bool WaitForDescendants(absl::Duration wait, const std::set<pid_t>& others) {
  const absl::Time deadline = absl::Now() + wait;
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  while (true) {
    pid_t pid = waitpid(-1, nullptr, WNOHANG);
    if (pid < 0 && errno == ECHILD) return true;
    if (pid != 0) continue;
    if (!others.empty() && OnlyOthersRemain(others)) return true;
    absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    // One signal may stand for several children, so all children that have ended are reaped after each signal.
    timespec timeout = absl::ToTimespec(left);
    sigtimedwait(&child, nullptr, &timeout);
  }
}

void KillChildren(const std::set<pid_t>& others) {
  for (pid_t pid : Children()) {
    if (others.count(pid) == 0) kill(pid, SIGKILL);
  }
}

absl::Status BecomeTrainer(const std::vector<std::string>& arguments) {
  std::string program = JoinPath(BinaryFolder(), "trainyard-trainer");
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv = {program.data()};
  for (std::string& copy : copies) argv.push_back(copy.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  if (errno == ENOENT) {
    return absl::FailedPreconditionError(
        absl::StrCat("this command needs ", program,
                     ", which is not installed; run the command on a host with the package trainyard-worker, or in the "
                     "container image of the worker"));
  }
  return ErrnoStatus(errno, absl::StrCat("cannot start ", program));
}

std::string ExitText(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit code ", WEXITSTATUS(wait_status));
  if (!WIFSIGNALED(wait_status)) return absl::StrCat("wait status ", wait_status);
  return absl::StrCat("killed by signal ", WTERMSIG(wait_status), " (", strsignal(WTERMSIG(wait_status)), ")");
}

std::string LastLines(const std::string& path, int lines) {
  auto text = ReadFile(path, uint64_t{64} << 20);
  if (!text.ok()) return "";
  std::vector<absl::string_view> all = absl::StrSplit(absl::StripTrailingAsciiWhitespace(*text), '\n');
  const size_t from = all.size() > static_cast<size_t>(lines) ? all.size() - static_cast<size_t>(lines) : 0;
  return absl::StrJoin(all.begin() + static_cast<std::ptrdiff_t>(from), all.end(), "\n");
}

}  // namespace trainyard::client
