// trainyard-worker: the worker daemon of one host. Reads the configuration, starts the daemon (daemon.h), waits for a
// signal or the end of the lifeline. Exit codes: 0 left as requested, 1 could not start or was refused, 2 bad
// configuration.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/escape.h"
#include "common/lifeline.h"
#include "common/logging.h"
#include "common/malloc_memory.h"
#include "common/poll_thread.h"
#include "common/rpc_logging.h"
#include "common/standard_descriptors.h"
#include "common/version.h"
#include "worker/agent/config.h"
#include "worker/agent/daemon.h"

namespace trainyard::agent {
namespace {

// Returns a descriptor from which SIGTERM and SIGINT are read. Blocks these signals, and SIGCHLD, which the process
// table reads, in every thread that is started later. `with_hangup`: SIGHUP is read too, and reloads the settings of
// the log; otherwise it means that the terminal was closed, and keeps its default effect.
int BlockSignals(bool with_hangup) {
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGTERM);
  sigaddset(&handled, SIGINT);
  sigaddset(&handled, SIGCHLD);
  if (with_hangup) sigaddset(&handled, SIGHUP);
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  signal(SIGPIPE, SIG_IGN);
  sigdelset(&handled, SIGCHLD);
  return signalfd(-1, &handled, SFD_CLOEXEC);
}

// Writes one line of JSON, then closes the descriptor: the process that started this daemon waits for the line, or for
// the end of the pipe.
void ReportReady(int fd, const Daemon& daemon) {
  std::string line = nlohmann::json({{"socket", daemon.socket()},
                                     {"pid", getpid()},
                                     {"metrics", daemon.metrics_address()},
                                     {"health", daemon.health_address()}})
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                     "\n";
  if (write(fd, line.data(), line.size()) < 0) spdlog::warn("--ready-fd {}: cannot be written", fd);
  close(fd);
}

// Reads a signal and requests the daemon to leave. `reload` handles SIGHUP.
void HandleSignal(int signals, const Config& config, Daemon& daemon, const std::function<void()>& reload) {
  struct signalfd_siginfo info;
  if (read(signals, &info, sizeof info) != sizeof info) return;
  if (info.ssi_signo == SIGHUP) return reload();
  spdlog::info("{}: leaving; trainers {}", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT",
               config.stop_trainers ? "are stopped" : "continue");
  daemon.RequestLeave(config.stop_trainers ? Leaving::kStopTrainers : Leaving::kKeepTrainers);
}

void HandleLifeline(int lifeline, Daemon& daemon) {
  if (PeekLifeline(lifeline) == Lifeline::kReleased) {
    spdlog::info("released: the end of the lifeline is ignored from now on; leaving when there is nothing left to do");
    return daemon.RequestLeave(Leaving::kWhenIdle);
  }
  spdlog::info("the lifeline has ended: killing trainers and leaving");
  daemon.RequestLeave(Leaving::kKillTrainers);
}

int Run(int argc, char** argv) {
  absl::StatusOr<Config> config = ReadConfig(argc, argv);
  if (!config.ok()) {
    fprintf(stderr, "trainyard-worker: %s\n", EscapeLines(config.status().message()).c_str());
    return 2;
  }
  if (!config->text_to_print.empty()) {
    fputs(config->text_to_print.c_str(), stdout);
    return 0;
  }
  if (absl::Status opened = OpenLog(config->logging); !opened.ok()) {
    fprintf(stderr, "trainyard-worker: log.file: %s\n", EscapeLines(opened.message()).c_str());
    return 2;
  }
  RouteRpcLogs();
  int signals = BlockSignals(/*with_hangup=*/config->lifeline_fd < 0 && isatty(STDERR_FILENO) == 0);
  const MemoryTrimmer trimmer;
  const auto reload = [argc, argv] {
    absl::StatusOr<Config> again = ReadConfig(argc, argv);
    ReloadLog(again.ok() ? absl::StatusOr<std::string>(again->logging.level) : again.status());
  };
  // If a shim is killed, this process becomes the parent of its trainer and reaps it.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (int fd : {config->lifeline_fd, config->ready_fd}) {
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  spdlog::info("trainyard-worker {}: state {}, coordinator {}", kVersion, config->state, config->coordinator);

  Daemon daemon(*config, Clock::GetSteadyClock());
  if (absl::Status started = daemon.Start(); !started.ok()) {
    spdlog::error("cannot start: {}", std::string(started.message()));
    return absl::IsInvalidArgument(started) ? 2 : 1;
  }
  if (config->ready_fd >= 0) ReportReady(config->ready_fd, daemon);
  PollThread watcher(
      {{.fd = signals, .on_ready = [&] { return HandleSignal(signals, *config, daemon, reload), true; }},
       {.fd = config->lifeline_fd, .on_ready = [&] { return HandleLifeline(config->lifeline_fd, daemon), false; }}});
  return daemon.AwaitEnd();
}

}  // namespace
}  // namespace trainyard::agent

int main(int argc, char** argv) {
#ifndef TRAINYARD_SANITIZED
  // Debian's Abseil checks for deadlocks at every lock, which costs more than the locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  // gRPC's fork handlers would run at every start of a shim, which needs none of them.
  setenv("GRPC_ENABLE_FORK_SUPPORT", "false", 1);
  trainyard::LimitMallocMemory();
  return trainyard::agent::Run(argc, argv);
}
