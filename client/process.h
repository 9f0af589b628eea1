// Child processes: starts them in sessions of their own with an explicit set of descriptors, and waits for them and all
// their descendants. Linux only.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard::client {

struct SpawnOptions {
  std::string program;  // absolute path
  std::vector<std::string> arguments;
  std::string output_path;  // standard output and standard error are appended to it
  // (descriptor in this process, descriptor in the child). The first may be close-on-exec; the second is at least 3.
  std::vector<std::pair<int, int>> descriptors;
};

// Starts a process in a new session with signals unblocked and at their defaults, and empty standard input.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// From now on, orphaned descendants become children of this process, so that WaitForDescendants can see them end.
absl::Status AdoptOrphans();

// The children of this process that have not been reaped. Empty if the kernel does not list them.
std::set<pid_t> Children();

// Waits until this process has no children except `others`, and reaps those that end. Returns false if some still run
// after `wait`. REQUIRES: AdoptOrphans was called, and SIGCHLD is blocked (BlockSignals).
bool WaitForDescendants(absl::Duration wait, const std::set<pid_t>& others);

// Sends SIGKILL to every child except `others`.
void KillChildren(const std::set<pid_t>& others);

// Replaces this process by trainyard-trainer, which has the code of the ranks, and returns only if that fails. Possible
// errors: FailedPrecondition: trainyard-trainer is not in the folder of this program, for example because only trainctl
// is installed; those of execve.
absl::Status BecomeTrainer(const std::vector<std::string>& arguments);

// Formats a status of waitpid: "exit code 1", "killed by signal 9 (Killed)".
std::string ExitText(int wait_status);

// The last `lines` lines of a file; "" if it cannot be read.
std::string LastLines(const std::string& path, int lines);

}  // namespace trainyard::client
