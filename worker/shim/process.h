// Processes: starts the trainer, distinguishes processes that reuse a pid, and ends all descendants of the shim.
// Single-threaded, because the parent-death signal of a child is tied to the thread that started it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

namespace trainyard::shim {

// The contents of `launch` (records.h). Points into the bytes it was read from.
struct Launch {
  const char* program = nullptr;
  char** arguments = nullptr;  // ended by a null pointer
  char** variables = nullptr;
  uint64_t log_bytes = 0;
  const char* workdir = nullptr;  // null: the shim's own working directory
  const char* cpus = nullptr;     // "0 2"; null: those of the shim
  int64_t grace_ms = 0;           // of a command: the time from SIGTERM to SIGKILL
};

// Returns when the process started, in clock ticks since boot (field 22 of /proc/<pid>/stat); 0 if it does not exist.
uint64_t StartTime(pid_t pid);

// Kills the processes in the group or session of `leader` that are not older than `leader`, which may have exited.
void KillSession(pid_t leader, uint64_t leader_start);

// Whether a process other than `leader` is in the group of `leader` and has not ended.
bool HasOthersInGroup(pid_t leader);

// Starts the program as the leader of its own session, with its output going to the two descriptors; the kernel kills
// it when the shim exits. Returns its pid, or -1 with errno set and the name of the failed call in `failed`.
pid_t StartTrainer(const Launch& launch, int stdout_fd, int stderr_fd, const char** failed);

// Kills and reaps every child of this process and every orphan that becomes its child (the shim is a subreaper), for at
// most `wait_ms`. When it reaps the trainer, sets `trainer_reaped` and stores the exit status in `status` and `usage`.
// REQUIRES: `trainer_reaped` says whether the trainer was reaped before. Returns whether no child is left.
bool EndDescendants(pid_t trainer, int* status, struct rusage* usage, bool* trainer_reaped, int wait_ms);

int64_t NowMs(clockid_t clock);

}  // namespace trainyard::shim
