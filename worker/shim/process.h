// Processes: starting the trainer, telling one life of a pid from the next, ending all that descends from the shim.
// Single-threaded; the parent-death signal that a child asks for is tied to the thread that made it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

namespace trainyard::shim {

// What `launch` says (records.h). Points into the bytes it was read from.
struct Launch {
  const char* program = nullptr;
  char** arguments = nullptr;  // ended by a null pointer
  char** variables = nullptr;
  uint64_t log_bytes = 0;
};

// Field 22 of /proc/<pid>/stat; 0: no such process.
uint64_t StartTime(pid_t pid);

// Kills the processes whose group or session is that of `leader`, which may be dead, and that are no older than it.
void KillSession(pid_t leader, uint64_t leader_start);

// Starts the program as the leader of a session of its own, its output into the two descriptors, killed by the kernel
// when the shim dies. Returns its pid, or -1 with errno set; `failed` then names the call.
pid_t StartTrainer(const Launch& launch, int stdout_fd, int stderr_fd, const char** failed);

// Kills and reaps every child of this process, and what becomes its child thereby (it is a subreaper), for at most
// `wait_ms`. The trainer's status goes to `status` and `usage`. Returns whether nothing is left.
bool EndDescendants(pid_t trainer, int* status, struct rusage* usage, bool* trainer_reaped, int wait_ms);

int64_t NowMs(clockid_t clock);

}  // namespace trainyard::shim
