#include "worker/agent/process_table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "worker/agent/command.h"
#include "worker/agent/environment.h"
#include "worker/agent/inventory.h"
#include "worker/agent/stack_request.h"
#include "worker/shim/process.h"
#include "worker/shim/records.h"

namespace trainyard::agent {
namespace {

constexpr char kTokenVariable[] = "TRAINYARD_TOKEN=";
// The shim writes the pids within a few milliseconds; there is no other notification than the file.
constexpr int kPidPollMs = 2;
constexpr int kLatePidPollMs = 100;  // once kPidWait has passed
// If a trainer must be killed and its shim has not written the pids within this time (because the disk is full), the
// shim is killed instead, and its trainer ends with it.
constexpr absl::Duration kPidWait = absl::Seconds(1);
// How long to wait until the trainer of a killed shim has ended.
constexpr absl::Duration kLostTrainerWait = absl::Milliseconds(500);
constexpr size_t kMessageBytesMax = 4096;
// The lifeline's descriptor in a shim.
constexpr int kLifelineInShim = 3;

int OpenPidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

bool IsAlive(const ProcessId& process) { return process.pid > 1 && shim::StartTime(process.pid) == process.start; }

int MakeChildFd() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Returns whether the pids in a rank folder can still be those of the processes that it names: whether process 1 was
// already running when they were written. After a restart of the host or of the container, others have these pids.
bool IsOfThisBoot(const std::string& folder) {
  struct stat info;
  // The folder may have been removed since this daemon has read the pids.
  if (stat(JoinPath(folder, shim::kPidFile).c_str(), &info) != 0) return errno == ENOENT;
  struct timespec since_boot;
  if (clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return false;
  // If /proc hides process 1, its start time reads as 0, the boot.
  const absl::Duration from_boot_to_start = absl::Seconds(shim::StartTime(1)) / sysconf(_SC_CLK_TCK);
  return absl::Now() - absl::TimeFromTimespec(info.st_mtim) <=
         absl::DurationFromTimespec(since_boot) - from_boot_to_start;
}

// Ends the processes that the trainer of a dead shim may have started. The kernel kills the trainer itself.
void EndLostTrainer(const std::string& folder, const ProcessId& trainer) {
  const uint64_t start = shim::StartTime(trainer.pid);
  // No process gets the number of a session that still has members, so a new process with it proves that none is left.
  const bool is_reused = start != 0 && start != trainer.start;
  if (is_reused || !IsOfThisBoot(folder)) return;
  shim::KillSession(trainer.pid, trainer.start);
  absl::Time deadline = absl::Now() + kLostTrainerWait;
  while (IsAlive(trainer) && absl::Now() < deadline) {
    // As a subreaper, this daemon becomes the parent of the process and must reap it.
    waitpid(trainer.pid, nullptr, WNOHANG);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

void RemoveRankFolder(const std::string& folder) {
  std::error_code error;  // a folder that remains is removed by a later daemon
  std::filesystem::remove_all(folder, error);
}

// Ends a run of command.check, the program that checks a host before the ranks of a command start there. An earlier
// incarnation has started this run; this incarnation runs the program again before it starts the ranks that waited.
void EndAbandonedCheck(const std::string& folder) {
  const absl::StatusOr<PidRecord> pids = ReadPids(folder);
  if (pids.ok() && IsAlive(pids->shim)) kill(pids->shim.pid, SIGKILL);
  // A shim that has written how the check ended has ended its processes before.
  if (pids.ok() && !ReadExit(folder).ok()) EndLostTrainer(folder, pids->trainer);
  RemoveRankFolder(folder);
}

}  // namespace

ProcessTable::ProcessTable(ProcessTableOptions options, Post post)
    : options_(std::move(options)),
      post_(std::move(post)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      child_fd_(MakeChildFd()),
      thread_([this] { Run(); }) {}

ProcessTable::~ProcessTable() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  Enqueue([] {});
  thread_.join();
  for (auto& [id, followed] : followed_) {
    if (followed.pidfd >= 0) close(followed.pidfd);
  }
  close(wake_fd_);
  close(child_fd_);
}

std::string ProcessTable::FolderOf(const TrainerId& id) const { return JoinPath(options_.ranks, FolderName(id)); }

void ProcessTable::Enqueue(Command command) {
  {
    absl::MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  uint64_t one = 1;
  // The write fails only if the counter is at its limit, and then the thread is awake anyway.
  (void)!write(wake_fd_, &one, sizeof one);
}

void ProcessTable::Start(StartProcess start) {
  Enqueue([this, start = std::move(start)] { StartNow(start); });
}

void ProcessTable::Signal(const TrainerId& id, int signal, bool to_group) {
  Enqueue([this, id, signal, to_group] { SignalNow(id, signal, to_group); });
}

void ProcessTable::MarkReported(const TrainerId& id) {
  Enqueue([this, id] {
    // Without the mark the next incarnation of the daemon reports the exit once more, which is harmless.
    MarkFolderReported(FolderOf(id)).IgnoreError();
    options_.on_pruned(PruneRankFolders(options_.ranks, options_.folder_limits));
  });
}

void ProcessTable::Run() {
  while (true) {
    std::vector<struct pollfd> fds = {{wake_fd_, POLLIN, 0}, {child_fd_, POLLIN, 0}};
    std::vector<TrainerId> order;
    int timeout_ms = -1;
    for (auto& [id, followed] : followed_) {
      fds.push_back({followed.pidfd, POLLIN, 0});
      order.push_back(id);
      if (followed.pids.has_value()) continue;
      int wait_ms = absl::Now() - followed.since < kPidWait ? kPidPollMs : kLatePidPollMs;
      timeout_ms = timeout_ms < 0 ? wait_ms : std::min(timeout_ms, wait_ms);
    }
    poll(fds.data(), fds.size(), timeout_ms);

    uint64_t count;
    (void)!read(wake_fd_, &count, sizeof count);
    struct signalfd_siginfo info;
    while (read(child_fd_, &info, sizeof info) == sizeof info) {
    }
    // Reaps shims, and orphans of shims that were killed. A pidfd signals the end even after the process was reaped.
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    for (size_t i = 0; i < order.size(); ++i) {
      auto at = followed_.find(order[i]);
      if (Poll(at->second, fds[i + 2].revents != 0)) continue;
      close(at->second.pidfd);
      followed_.erase(at);
    }
    RunCommands();
    absl::MutexLock lock(&mu_);
    if (stopping_ && commands_.empty()) return;
  }
}

void ProcessTable::RunCommands() {
  std::vector<Command> commands;
  {
    absl::MutexLock lock(&mu_);
    commands.swap(commands_);
  }
  for (Command& command : commands) command();
}

absl::StatusOr<LaunchRecord> ProcessTable::MakeLaunch(const StartProcess& start, const std::string& folder) const {
  const v1::DesiredTrainer& desired = start.desired;
  TrainerId id = FromProto(desired.key());
  const bool is_check = id.rank == kCheckRank;
  if (is_check || !start.master.empty()) {
    return CommandLaunch(desired, {.is_check = is_check,
                                   .master = start.master,
                                   .interface = InterfaceOf(desired.data_address()),
                                   .cpus = start.cpus,
                                   .error_file = JoinPath(folder, kErrorFile),
                                   .link = options_.link,
                                   .token = start.token,
                                   .log_bytes = options_.log_bytes_per_rank,
                                   .inherited = {environ}});
  }
  LaunchRecord launch = {
      .program = options_.trainer,
      .arguments = {options_.trainer, kLinkFlag, options_.link, "--job", id.job.value(), "--generation",
                    absl::StrCat(id.generation.value()), "--rank", absl::StrCat(id.rank)},
      .variables = TrainerEnvironment(desired, {.threads = start.threads,
                                                .owns_cores = start.owns_cores,
                                                .token = start.token,
                                                .snapshots = options_.snapshots(),
                                                .inherited = {environ}}),
      .log_bytes = options_.log_bytes_per_rank,
  };
  launch.variables.push_back(absl::StrCat("TRAINYARD_STACK_FILE=", JoinPath(folder, kStackFile)));
  return launch;
}

void ProcessTable::StartNow(const StartProcess& start) {
  TrainerId id = FromProto(start.desired.key());
  if (absl::Status ready = options_.check(); !ready.ok()) return ReportStartFailed(id, ready, /*may_pass=*/true);
  std::string folder = FolderOf(id);
  absl::StatusOr<LaunchRecord> launch = MakeLaunch(start, folder);
  if (!launch.ok()) return ReportStartFailed(id, launch.status(), /*may_pass=*/false);
  pid_t shim = 0;
  absl::Status status = MakeRankFolder(folder, *launch);
  bool is_ours = status.ok();
  if (status.ok()) status = Spawn(folder, &shim);
  if (status.ok()) return Follow({.id = id, .folder = folder, .shim_pid = shim, .since = absl::Now()});
  if (is_ours) WriteStartFailure(folder, status).IgnoreError();
  // If the folder exists, this rank has run here before. The coordinator does not know that, because its store was
  // restored from an older copy, and it uses the number of the generation again. The next number may be free.
  const bool was_started_before = absl::IsAlreadyExists(status);
  if (was_started_before) {
    status = absl::AlreadyExistsError(absl::StrCat(status.message(), " (this rank of this generation has run here ",
                                                   "before; the coordinator does not know that, because its store was ",
                                                   "restored from an older copy)"));
  }
  ReportStartFailed(id, status, /*may_pass=*/was_started_before || absl::IsResourceExhausted(status));
}

void ProcessTable::ReportStartFailed(const TrainerId& id, const absl::Status& why, bool may_pass) {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  exited.set_message(ValidUtf8(why.message(), kMessageBytesMax));
  exited.set_may_pass(may_pass);
  post_(ProcessEnded{id, std::move(exited)});
}

absl::Status ProcessTable::Spawn(const std::string& folder, pid_t* pid) const {
  std::string lifeline = absl::StrCat(kLifelineInShim);
  std::vector<const char*> arguments = {options_.shim.c_str(), "--dir", folder.c_str()};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  absl::Cleanup destroy = [&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  };
  // A shim inherits no other descriptor of the daemon: neither the daemon's output, whose end of file another process
  // may wait for, nor a socket.
  int first_closed = kLifelineInShim;
  if (options_.lifeline_fd >= 0) {
    arguments.insert(arguments.end(), {"--lifeline-fd", lifeline.c_str()});
    posix_spawn_file_actions_adddup2(&actions, options_.lifeline_fd, kLifelineInShim);
    ++first_closed;
  }
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, first_closed);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  arguments.push_back(nullptr);
  char* no_variables[] = {nullptr};
  int error = posix_spawn(pid, options_.shim.c_str(), &actions, &attributes, const_cast<char* const*>(arguments.data()),
                          no_variables);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", options_.shim));
  return absl::OkStatus();
}

void ProcessTable::Follow(Followed followed) {
  followed.pidfd = OpenPidfd(followed.shim_pid);
  if (followed.pidfd < 0) {  // the shim has ended already
    Finish(followed);
    return;
  }
  followed_[followed.id] = std::move(followed);
}

void ProcessTable::FindAll() {
  for (const TrainerId& id : ListRankFolders(options_.ranks)) {
    std::string folder = FolderOf(id);
    if (id.rank == kCheckRank) {
      EndAbandonedCheck(folder);
      continue;
    }
    ProcessFound found = {.id = id, .reported = IsFolderReported(folder), .stopped = IsFolderStopped(folder)};
    absl::StatusOr<LaunchRecord> launch = ReadLaunch(folder);
    for (absl::string_view variable : launch.ok() ? launch->variables : std::vector<std::string>()) {
      if (absl::ConsumePrefix(&variable, kTokenVariable)) found.token = std::string(variable);
    }
    if (launch.ok()) found.command_grace = launch->grace;
    if (launch.ok()) found.memory_limit = launch->memory_bytes;
    if (launch.ok()) found.cpus = launch->cpus;
    bool ended = found.reported || ReadExit(folder).ok() || CloseUnlessShimRuns(folder);
    absl::StatusOr<PidRecord> pids = ReadPids(folder);
    if (pids.ok()) found.pid = pids->trainer.pid;
    bool reported = found.reported;
    post_(std::move(found));
    if (reported) continue;
    Followed followed = {.id = id, .folder = folder, .since = absl::Now()};
    if (pids.ok()) {
      followed.pids = *pids;
      followed.memory_kills = CountMemoryKills(pids->trainer.pid);
    }
    if (ended) {
      Finish(followed);
      continue;
    }
    Enqueue([this, followed = std::move(followed)]() mutable {
      if (followed.pids.has_value()) followed.shim_pid = followed.pids->shim.pid;
      if (!followed.pids.has_value()) {
        followed_[followed.id] = std::move(followed);  // without a pidfd until its pids are written
        return;
      }
      bool is_alive = IsAlive(followed.pids->shim);
      if (is_alive) Follow(std::move(followed));
      if (!is_alive) Finish(followed);
    });
  }
  post_(AllFound{});
}

bool ProcessTable::Poll(Followed& followed, bool shim_ended) {
  if (!followed.pids.has_value()) FindPids(followed);
  if (followed.pidfd < 0) {
    // The folder was found while its shim was starting.
    if (followed.pids.has_value()) followed.pidfd = OpenPidfd(followed.pids->shim.pid);
    shim_ended = followed.pidfd < 0 && CloseUnlessShimRuns(followed.folder);
  }
  if (!shim_ended) return true;
  if (Finish(followed)) {
    for (auto& [id, other] : followed_) DiscountMemoryKill(followed.memory_kills, other.memory_kills);
  }
  return false;
}

void ProcessTable::FindPids(Followed& followed) {
  absl::StatusOr<PidRecord> pids = ReadPids(followed.folder);
  if (pids.ok()) {
    followed.pids = *pids;
    followed.memory_kills = CountMemoryKills(pids->trainer.pid);
    post_(ProcessStarted{followed.id, pids->trainer.pid});
    if (followed.pending_signal != 0) SignalNow(followed.id, followed.pending_signal, followed.pending_to_group);
  } else if (followed.pending_signal == SIGKILL && absl::Now() - followed.since > kPidWait && followed.pidfd >= 0) {
    // The trainer is killed together with its shim.
    syscall(SYS_pidfd_send_signal, followed.pidfd, SIGKILL, nullptr, 0);
  }
}

bool ProcessTable::Finish(Followed& followed) {
  // ProcessStarted is also posted for a trainer that ended before its pids were read.
  if (!followed.pids.has_value()) FindPids(followed);
  absl::StatusOr<v1::TrainerExited> exited = ReadExit(followed.folder);
  // If the shim was killed while no daemon ran, a daemon has recorded the loss, and processes that the trainer has
  // started may still run.
  if (!exited.ok() || exited->cause() == v1::TrainerExited::CAUSE_LOST) {
    if (followed.pids.has_value()) EndLostTrainer(followed.folder, followed.pids->trainer);
    CloseUnlessShimRuns(followed.folder);
    exited = LostExit(followed.folder);
  }
  bool is_memory_kill = false;
  if (exited->cause() == v1::TrainerExited::CAUSE_SIGNAL && exited->signal() == SIGKILL && exited->message().empty()) {
    const MemoryKills now = RecountMemoryKills(followed.memory_kills);
    exited->set_message(FormatMemoryKill(followed.memory_kills, now));
    is_memory_kill = !exited->message().empty();
    if (is_memory_kill) followed.memory_kills = now;
  }
  const bool failed = exited->cause() == v1::TrainerExited::CAUSE_EXIT && exited->code() != 0;
  if (failed && exited->message().empty()) exited->set_message(ReadErrorFile(JoinPath(followed.folder, kErrorFile)));
  post_(ProcessEnded{followed.id, *std::move(exited)});
  if (followed.id.rank == kCheckRank) RemoveRankFolder(followed.folder);
  return is_memory_kill;
}

void ProcessTable::SignalNow(const TrainerId& id, int signal, bool to_group) {
  auto at = followed_.find(id);
  if (at == followed_.end()) return;  // it has ended
  Followed& followed = at->second;
  if (!followed.pids.has_value()) {
    if (followed.pending_signal != SIGKILL) followed.pending_signal = signal;
    followed.pending_to_group = to_group;
    return;
  }
  const ProcessId& trainer = followed.pids->trainer;
  if (!IsAlive(trainer)) return;
  // Only commands are ended with SIGTERM to the group. A full disk must not prevent that.
  if (signal == SIGTERM && to_group) MarkFolderStopped(followed.folder).IgnoreError();
  kill(signal == SIGKILL || to_group ? -trainer.pid : trainer.pid, signal);
}

}  // namespace trainyard::agent
