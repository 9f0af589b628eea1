// trainyard-coordinator. Reads its settings, and runs a Coordinator until SIGTERM, SIGINT or the end of its lifeline,
// or until its store is lost (Coordinator::Start). Exit codes: 0 stopped as requested; 1 failed; 2 invalid input.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/descriptor_limit.h"
#include "common/escape.h"
#include "common/exit_codes.h"
#include "common/lifeline.h"
#include "common/limits.h"
#include "common/logging.h"
#include "common/malloc_memory.h"
#include "common/rpc_logging.h"
#include "common/standard_descriptors.h"
#include "coordinator/coordinator.h"
#include "coordinator/options.h"
#include "coordinator/rpc/acceptor.h"

namespace trainyard {
namespace {

// Blocks the signals in every thread; they are read from a descriptor, so they need no handlers. `with_hangup`: also
// SIGHUP, after which the log file is opened again and its level is read again. Without it, SIGHUP keeps its
// default action.
int BlockSignals(bool with_hangup) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (with_hangup) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

void WriteReady(int fd, const Coordinator& coordinator) {
  if (fd < 0) return;
  std::string line =
      nlohmann::json({{"listen", coordinator.address()}, {"metrics", coordinator.metrics_address()}}).dump() + "\n";
  if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    spdlog::warn("cannot write the addresses to descriptor {}", fd);
  }
  close(fd);
}

// How long a coordinator that was released (common/lifeline.h) waits after the end of its last job before it exits, so
// that a watcher that just lost its connection can come back.
constexpr int kIdleSeconds = 10;

// Returns the exit code. `reload` handles SIGHUP.
int WaitForEnd(int signal_fd, int lifeline_fd, int failed_fd, const Coordinator& coordinator,
               const std::function<void()>& reload) {
  pollfd polled[] = {{signal_fd, POLLIN, 0}, {failed_fd, POLLIN, 0}, {lifeline_fd, POLLIN, 0}};
  bool is_released = false;
  int idle_seconds = 0;
  while (true) {
    const int ready = poll(polled, lifeline_fd >= 0 ? 3 : 2, is_released ? 1000 : -1);
    if (ready == 0) {
      idle_seconds = coordinator.jobs_unfinished() == 0 ? idle_seconds + 1 : 0;
      if (idle_seconds < kIdleSeconds) continue;
      spdlog::info("released, and every job has ended: exiting");
      return 0;
    }
    if (ready < 0) continue;
    if (polled[1].revents != 0) return kClientFailed;
    if (polled[0].revents != 0) {
      signalfd_siginfo info;
      ssize_t size = read(signal_fd, &info, sizeof info);
      if (size == sizeof info && info.ssi_signo == SIGHUP) {
        reload();
        continue;
      }
      spdlog::info("signal {}: exiting; jobs continue", size == sizeof info ? static_cast<int>(info.ssi_signo) : 0);
      return 0;
    }
    if (lifeline_fd < 0 || polled[2].revents == 0) continue;
    if (PeekLifeline(lifeline_fd) == Lifeline::kEnded) {
      spdlog::info("the lifeline has ended: exiting");
      return 0;
    }
    spdlog::info("released: the lifeline's end is ignored from now on; exiting when every job has ended");
    lifeline_fd = -1;
    is_released = true;
  }
}

// Each daemon needs a descriptor.
void RaiseDescriptors() {
  const rlim_t limit = RaiseDescriptorLimit();
  if (limit == 0) return;
  const rlim_t connections = DescriptorsForConnections(limit);
  if (connections >= limits::kHosts) return;
  spdlog::warn(
      "{} file descriptors are allowed, enough for about {} hosts of the {} that this version supports; raise the hard "
      "limit (ulimit -Hn, LimitNOFILE=) to attach more",
      limit, connections, limits::kHosts);
}

int Run(const CoordinatorOptions& options, const std::function<void()>& reload) {
  int signal_fd = BlockSignals(/*with_hangup=*/options.lifeline_fd < 0 && isatty(STDERR_FILENO) == 0);
  int failed_fd = eventfd(0, EFD_CLOEXEC);
  const MemoryTrimmer trimmer;
  auto coordinator = Coordinator::Start(options, Clock::GetSteadyClock(), [failed_fd](const absl::Status& status) {
    spdlog::error("the store accepts no more writes: {}; exiting; jobs continue", std::string(status.message()));
    eventfd_write(failed_fd, 1);
  });
  if (!coordinator.ok()) {
    spdlog::error("{}", std::string(coordinator.status().message()));
    return absl::IsInvalidArgument(coordinator.status()) ? kClientBadInput : kClientFailed;
  }
  WriteReady(options.ready_fd, **coordinator);
  int code = WaitForEnd(signal_fd, options.lifeline_fd, failed_fd, **coordinator, reload);
  (*coordinator)->Stop();
  return code;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
#ifndef TRAINYARD_SANITIZED
  // Debian's Abseil runs its deadlock detector also in release builds; with thousands of streams it takes two thirds of
  // the CPU time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  trainyard::LimitMallocMemory();
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
  umask(077);  // all files of a coordinator are readable only by its owner
  if (absl::Status opened = trainyard::OpenLog(options.logging); !opened.ok()) {
    std::fprintf(stderr, "trainyard-coordinator: log.file: %s\n", trainyard::EscapeLines(opened.message()).c_str());
    return trainyard::kClientBadInput;
  }
  trainyard::RouteRpcLogs();
  trainyard::RaiseDescriptors();
  return trainyard::Run(options, [argc, argv] {
    auto again = trainyard::ReadCommandLine(argc, argv);
    if (!again.ok()) return trainyard::ReloadLog(again.status());
    trainyard::ReloadLog(again->options.logging.level);
  });
}
