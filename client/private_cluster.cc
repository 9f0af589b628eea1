#include "client/private_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/process.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/lifeline.h"
#include "common/limits.h"
#include "common/private_folder.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

// Descriptor numbers in the daemons.
constexpr int kLifelineFd = 3;
constexpr int kReadyFd = 4;
constexpr size_t kReadyLineBytes = 4096;
constexpr absl::Duration kStartWait = absl::Seconds(20);
// Ranks get the grace period of a stop; daemons need a little longer to report that the ranks have ended.
const absl::Duration kStopWait = limits::kStopGrace + absl::Seconds(5);
const absl::Duration kKillWait = absl::Seconds(5);
constexpr int kLogLines = 10;

int PidFd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// Returns how a child has ended. Does not reap it.
std::string HowItEnded(pid_t pid) {
  siginfo_t info = {};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return "ended";
  if (info.si_code == CLD_EXITED) return absl::StrCat("ended with ", ExitText(info.si_status << 8));
  return absl::StrCat("was ", ExitText(info.si_status));
}

// Returns whether a Unix socket can be bound at `path`. It cannot if the path is too long, or on most network file
// systems.
bool CanHoldSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() > limits::kSocketPathBytes) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  absl::Cleanup close_fd = [fd] { close(fd); };
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && unlink(path.c_str()) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateCluster>> PrivateCluster::Start(const PrivateClusterOptions& options) {
  for (const char* program : {"trainyard-coordinator", "trainyard-worker", "trainyard-shim", "trainyard-trainer"}) {
    if (FileExists(JoinPath(options.binary_folder, program))) continue;
    return absl::InternalError(absl::StrCat(program, " is not in ", options.binary_folder,
                                            ", where trainctl is; build or install all programs into one folder"));
  }
  auto cluster = std::unique_ptr<PrivateCluster>(new PrivateCluster(options));
  RETURN_IF_ERROR(MakeFolders(options.folder));
  if (chmod(options.folder.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot set the mode of ", options.folder, " to 0700"));
  }
  cluster->others_ = Children();
  RETURN_IF_ERROR(AdoptOrphans());
  int lifeline[2];
  if (pipe2(lifeline, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot create the lifeline pipe");
  cluster->lifeline_read_ = lifeline[0];
  cluster->lifeline_write_ = lifeline[1];
  RETURN_IF_ERROR(cluster->StartCoordinator());
  RETURN_IF_ERROR(cluster->StartWorker());
  return cluster;
}

PrivateCluster::~PrivateCluster() {
  Stop().IgnoreError();
  if (lifeline_read_ >= 0) close(lifeline_read_);
  if (coordinator_fd_ >= 0) close(coordinator_fd_);
  if (worker_fd_ >= 0) close(worker_fd_);
}

std::string PrivateCluster::LogPath(absl::string_view daemon) const {
  return JoinPath(options_.folder, absl::StrCat(daemon, ".log"));
}

std::string PrivateCluster::ranks_folder() const { return JoinPath(options_.folder, "worker/ranks"); }

absl::StatusOr<std::string> PrivateCluster::ChooseSocket() const {
  const std::string path = JoinPath(options_.folder, "socket");
  if (CanHoldSocket(path)) return path;
  ASSIGN_OR_RETURN(std::string folder, SocketFolder());
  return JoinPath(folder, absl::StrCat("run-", HashHex(options_.folder).substr(0, 16), ".sock"));
}

absl::Status PrivateCluster::StartCoordinator() {
  ASSIGN_OR_RETURN(const std::string socket, ChooseSocket());
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot create a pipe");
  absl::Cleanup close_read = [fd = ready[0]] { close(fd); };
  auto pid = Spawn(
      {.program = JoinPath(options_.binary_folder, "trainyard-coordinator"),
       .arguments = {"--listen", absl::StrCat("unix:", socket), "--state", JoinPath(options_.folder, "coordinator"),
                     "--metrics", "", "--lifeline-fd", absl::StrCat(kLifelineFd), "--ready-fd", absl::StrCat(kReadyFd)},
       .output_path = LogPath("coordinator"),
       .descriptors = {{lifeline_read_, kLifelineFd}, {ready[1], kReadyFd}}});
  close(ready[1]);
  RETURN_IF_ERROR(pid.status());
  coordinator_ = *pid;
  coordinator_fd_ = PidFd(coordinator_);
  return ReadAddress(ready[0]);
}

// Reads the line of JSON that the coordinator writes when it is ready; end of file without a line means that it has
// exited.
absl::Status PrivateCluster::ReadAddress(int fd) {
  const absl::Time deadline = absl::Now() + kStartWait;
  std::string line;
  while (line.find('\n') == std::string::npos && line.size() < kReadyLineBytes) {
    pollfd ready = {.fd = fd, .events = POLLIN, .revents = 0};
    int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    int polled = left_ms > 0 ? poll(&ready, 1, static_cast<int>(left_ms)) : 0;
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) {
      return absl::InternalError(absl::StrCat("the private coordinator was not ready within ",
                                              absl::FormatDuration(kStartWait), "; its log is ",
                                              LogPath("coordinator")));
    }
    char buffer[512];
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      std::string last_lines = LastLines(LogPath("coordinator"), kLogLines);
      return absl::InternalError(
          absl::StrCat("the private coordinator did not start; its log ", LogPath("coordinator"),
                       last_lines.empty() ? " is empty" : absl::StrCat(" ends with:\n", last_lines)));
    }
    line.append(buffer, static_cast<size_t>(n));
  }
  auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("listen") || !json["listen"].is_string()) {
    return absl::InternalError(absl::StrCat("the private coordinator reported no address, but this line: ", line));
  }
  address_ = json["listen"].get<std::string>();
  return absl::OkStatus();
}

absl::Status PrivateCluster::StartWorker() {
  ASSIGN_OR_RETURN(worker_,
                   Spawn({.program = JoinPath(options_.binary_folder, "trainyard-worker"),
                          .arguments = {"--coordinator", address_, "--slots", absl::StrCat(options_.slots), "--name",
                                        kHostName, "--state", JoinPath(options_.folder, "worker"), "--metrics", "",
                                        "--health", "", "--lifeline-fd", absl::StrCat(kLifelineFd)},
                          .output_path = LogPath("worker"),
                          .descriptors = {{lifeline_read_, kLifelineFd}}}));
  worker_fd_ = PidFd(worker_);
  return absl::OkStatus();
}

void PrivateCluster::WatchDaemons(std::function<void(const std::string&)> on_death) {
  auto reported = std::make_shared<std::atomic<bool>>(false);
  auto watch = [&](int fd, pid_t pid, const std::string& name) {
    return PollThread::Watch{
        .fd = fd, .on_ready = [this, pid, name, reported, on_death] {
          if (!reported->exchange(true)) {
            std::string last_lines = LastLines(LogPath(name), kLogLines);
            on_death(absl::StrCat("the private ", name, " ", HowItEnded(pid), "; its log ", LogPath(name),
                                  last_lines.empty() ? " is empty" : absl::StrCat(" ends with:\n", last_lines)));
          }
          return false;
        }};
  };
  watcher_ = std::make_unique<PollThread>(std::vector<PollThread::Watch>{
      watch(coordinator_fd_, coordinator_, "coordinator"), watch(worker_fd_, worker_, "worker")});
}

void PrivateCluster::CloseLifeline() {
  int fd = lifeline_write_.exchange(-1);
  if (fd >= 0) close(fd);
}

absl::Status PrivateCluster::Detach() {
  int fd = lifeline_write_.exchange(-1);
  if (fd < 0) return absl::FailedPreconditionError("the private daemons are being stopped already");
  watcher_.reset();
  absl::Cleanup close_fd = [fd] { close(fd); };
  // main.cc ignores SIGPIPE, as ReleaseLifeline requires.
  if (!trainyard::ReleaseLifeline(fd)) return ErrnoStatus(errno, "cannot detach the private daemons");
  stopped_ = true;
  return absl::OkStatus();
}

bool PrivateCluster::DaemonEnded() const {
  pollfd fds[] = {{.fd = coordinator_fd_, .events = POLLIN, .revents = 0},
                  {.fd = worker_fd_, .events = POLLIN, .revents = 0}};
  return poll(fds, 2, 0) > 0;
}

absl::Status PrivateCluster::Stop() {
  if (stopped_) return absl::OkStatus();
  stopped_ = true;
  StopWatching();
  CloseLifeline();
  if (WaitForDescendants(kStopWait, others_)) return absl::OkStatus();
  // Each round may adopt new orphans, which are killed in the next.
  for (int round = 0; round < 10; ++round) {
    KillChildren(others_);
    if (WaitForDescendants(kKillWait / 10, others_)) {
      return absl::InternalError(absl::StrCat("daemons or trainers did not stop within ",
                                              absl::FormatDuration(kStopWait), " and were killed; their logs are in ",
                                              options_.folder));
    }
  }
  return absl::InternalError(
      absl::StrCat("processes started for this job could not be killed; their logs are in ", options_.folder));
}

}  // namespace trainyard::client
