#include "worker/trainer/kernel_choice.h"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "common/version.h"

extern char** environ;

namespace trainyard {
namespace {

constexpr double kClearlyFaster = 1.05;
constexpr absl::Duration kChildLimit = absl::Seconds(10);
constexpr absl::Duration kLockWait = absl::Seconds(30);  // for another rank that measures

// Describes the first processor: vendor, family, model, stepping, and flags.
std::string CpuDescription() {
  std::ifstream file("/proc/cpuinfo");
  std::string description;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    for (const char* key : {"vendor_id", "cpu family", "model", "stepping", "flags"}) {
      if (absl::StartsWith(line, key)) absl::StrAppend(&description, line, "\n");
    }
  }
  return description;
}

struct Pipe {
  ~Pipe() {
    for (int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  int ends[2] = {-1, -1};
};

// Reads the pipe until its end.
absl::StatusOr<std::string> ReadAll(int fd, absl::Time deadline) {
  std::string text;
  while (true) {
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return absl::DeadlineExceededError("it did not end in time");
    if (poll(&polled, 1, static_cast<int>(left_ms)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "cannot wait for its output");
    }
    if (polled.revents == 0) continue;
    char bytes[256];
    const ssize_t size = read(fd, bytes, sizeof bytes);
    if (size < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot read its output");
    if (size == 0) return text;
    if (size > 0) text.append(bytes, static_cast<size_t>(size));
  }
}

}  // namespace

bool LeverIsFaster(const KernelSpeeds& speeds, bool expected) {
  return expected ? speeds.without < kClearlyFaster * speeds.with_lever
                  : speeds.with_lever >= kClearlyFaster * speeds.without;
}

absl::StatusOr<KernelSpeeds> ReadKernelSpeeds(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  KernelSpeeds speeds;
  if (fields.size() == 2 && absl::SimpleAtod(fields[0], &speeds.with_lever) &&
      absl::SimpleAtod(fields[1], &speeds.without) && speeds.with_lever > 0 && speeds.without > 0) {
    return speeds;
  }
  return absl::InternalError(absl::StrCat(path, " does not hold two speeds"));
}

absl::StatusOr<KernelSpeeds> LoadOrMeasure(const std::string& path,
                                           const std::function<absl::StatusOr<KernelSpeeds>()>& measure) {
  if (absl::StatusOr<KernelSpeeds> stored = ReadKernelSpeeds(path); stored.ok()) return stored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  RETURN_IF_ERROR(MakeFolders(folder.parent_path().parent_path()));
  for (const std::string& missing : {folder.parent_path().string(), folder.string()}) {
    if (mkdir(missing.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("cannot create ", missing));
    }
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock, FileLock::Acquire(absl::StrCat(path, ".lock"), kLockWait));
  if (absl::StatusOr<KernelSpeeds> stored = ReadKernelSpeeds(path); stored.ok())
    return stored;  // another rank was first
  ASSIGN_OR_RETURN(const KernelSpeeds speeds, measure());
  RETURN_IF_ERROR(WriteFileAtomically(path, absl::StrCat(speeds.with_lever, " ", speeds.without, "\n")));
  return speeds;
}

absl::StatusOr<std::string> KernelSpeedsPath() {
  std::string base;
  if (const char* state_home = getenv("XDG_STATE_HOME"); state_home != nullptr && *state_home == '/') {
    base = state_home;
  }
  if (const char* home = getenv("HOME"); base.empty() && home != nullptr && *home == '/') {
    base = JoinPath(home, ".local/state");
  }
  if (const passwd* entry = getpwuid(getuid()); base.empty() && entry != nullptr && *entry->pw_dir == '/') {
    base = JoinPath(entry->pw_dir, ".local/state");
  }
  if (base.empty()) return absl::NotFoundError("this user has no home folder");
  const std::string key = HashHex(absl::StrCat(kVersion, " ", kTorchVersion, "\n", CpuDescription())).substr(0, 16);
  return absl::StrCat(base, "/trainyard/kernels/", key);
}

absl::StatusOr<double> ReadNumberFromChild(const std::string& argument) {
  Pipe pipe;
  if (pipe2(pipe.ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot create a pipe");
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), argument};
  char* argv[] = {command[0].data(), command[1].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", command[0]));
  close(std::exchange(pipe.ends[1], -1));
  const absl::StatusOr<std::string> output = ReadAll(pipe.ends[0], absl::Now() + kChildLimit);
  if (!output.ok()) kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(output.status()) << "while running " << command[0] << " " << argument;
  double number = 0;
  if (absl::SimpleAtod(*output, &number) && number > 0) return number;
  return absl::InternalError(absl::StrCat(command[0], " ", argument, " printed '", *output, "', not a number"));
}

}  // namespace trainyard
