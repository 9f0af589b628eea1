// trainyard-coordinator. Reads its settings, runs a Coordinator until SIGTERM, SIGINT, the end of its lifeline or a
// store that takes nothing any more, and stops it. Exit codes: 0 stopped as asked; 1 failed; 2 bad input.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/escape.h"
#include "common/exit_codes.h"
#include "common/lifeline.h"
#include "common/limits.h"
#include "common/logging.h"
#include "common/rpc_logging.h"
#include "common/standard_descriptors.h"
#include "coordinator/coordinator.h"
#include "coordinator/options.h"
#include "coordinator/rpc/acceptor.h"

namespace trainyard {
namespace {

// Blocked in every thread from here on and read from a descriptor instead, so no handler ever runs.
int BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

void TellReady(int fd, const Coordinator& coordinator) {
  if (fd < 0) return;
  std::string line =
      nlohmann::json({{"listen", coordinator.address()}, {"metrics", coordinator.metrics_address()}}).dump() + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    spdlog::warn("cannot tell the addresses on descriptor {}", fd);
  }
  close(fd);
}

// From the end of its last job until a coordinator that was let go leaves: a watcher that just lost it comes back.
constexpr int kIdleSeconds = 10;

// Returns the exit code.
int WaitForEnd(int signal_fd, int lifeline_fd, int failed_fd, const Coordinator& coordinator) {
  pollfd polled[] = {{signal_fd, POLLIN, 0}, {failed_fd, POLLIN, 0}, {lifeline_fd, POLLIN, 0}};
  bool let_go = false;
  int idle_seconds = 0;
  while (true) {
    const int ready = poll(polled, lifeline_fd >= 0 ? 3 : 2, let_go ? 1000 : -1);
    if (ready == 0) {
      idle_seconds = coordinator.jobs_unfinished() == 0 ? idle_seconds + 1 : 0;
      if (idle_seconds < kIdleSeconds) continue;
      spdlog::info("let go, and every job has ended: going down");
      return 0;
    }
    if (ready < 0) continue;
    if (polled[1].revents != 0) return kClientFailed;
    if (polled[0].revents != 0) {
      signalfd_siginfo info;
      ssize_t got = read(signal_fd, &info, sizeof info);
      spdlog::info("signal {}: going down; jobs go on", got == sizeof info ? static_cast<int>(info.ssi_signo) : 0);
      return 0;
    }
    if (lifeline_fd < 0 || polled[2].revents == 0) continue;
    if (LookAtLifeline(lifeline_fd) == Lifeline::kEnded) {
      spdlog::info("the lifeline has ended: going down");
      return 0;
    }
    spdlog::info("let go: the end of the lifeline means nothing any more; leaving once every job has ended");
    lifeline_fd = -1;
    let_go = true;
  }
}

// A daemon is a descriptor here. What the system allows at most is often far above what a shell starts with.
void RaiseDescriptors() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t connections = DescriptorsForConnections(limit.rlim_cur);
  if (connections >= limits::kHosts) return;
  spdlog::warn(
      "{} descriptors may be open, enough for about {} hosts of the {} that this version takes; raise the hard "
      "limit (ulimit -Hn, LimitNOFILE=) if there are to be more",
      limit.rlim_cur, connections, limits::kHosts);
}

int Run(const CoordinatorOptions& options) {
  int signal_fd = BlockSignals();
  int failed_fd = eventfd(0, EFD_CLOEXEC);
  auto coordinator = Coordinator::Start(options, Clock::GetSteadyClock(), [failed_fd](const absl::Status& status) {
    spdlog::error("the store takes nothing any more: {}; exiting, jobs go on", std::string(status.message()));
    eventfd_write(failed_fd, 1);
  });
  if (!coordinator.ok()) {
    spdlog::error("{}", std::string(coordinator.status().message()));
    return absl::IsInvalidArgument(coordinator.status()) ? kClientBadInput : kClientFailed;
  }
  TellReady(options.ready_fd, **coordinator);
  int code = WaitForEnd(signal_fd, options.lifeline_fd, failed_fd, **coordinator);
  (*coordinator)->Stop();
  return code;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
#ifndef TRAINYARD_SANITIZED
  // Debian's Abseil runs its deadlock detector also in release builds; with thousands of streams it costs two thirds.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  auto command_line = trainyard::ReadCommandLine(argc, argv);
  if (!command_line.ok()) {
    std::fprintf(stderr, "trainyard-coordinator: %s\n",
                 trainyard::EscapeLines(command_line.status().message()).c_str());
    return trainyard::kClientBadInput;
  }
  if (!command_line->print.empty()) {
    std::fputs(command_line->print.c_str(), stdout);
    return 0;
  }
  const trainyard::CoordinatorOptions& options = command_line->options;
  trainyard::InitLogging({.program = "coordinator", .json = options.log_json, .level = options.log_level});
  trainyard::RouteRpcLogs();
  trainyard::RaiseDescriptors();
  umask(077);  // all that a coordinator writes is for its owner
  return trainyard::Run(options);
}
