// Child processes: started in a session of their own with an explicit set of descriptors, and waited for down to the
// last descendant. Linux only.
#pragma once

#include <sys/types.h>

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
  std::string output_path;  // both streams are appended here
  // (ours, the child's); ours may be close-on-exec. The child's numbers are from 3 up.
  std::vector<std::pair<int, int>> descriptors;
};

// Starts a process in a new session, signals unblocked and at their defaults, standard input empty.
// Possible errors: NotFound, PermissionDenied, ...: the program or its output cannot be opened; the message names it.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// From now on, what a child of ours leaves behind becomes our child, so that WaitForDescendants can see it end.
absl::Status AdoptOrphans();

// Waits until this process has no child left, reaping all. False when some still live at the end of `wait`.
// REQUIRES: AdoptOrphans, and SIGCHLD blocked (BlockSignals).
bool WaitForDescendants(absl::Duration wait);

// SIGKILL to every child of ours.
void KillChildren();

// "exit code 1", "killed by signal 9 (Killed)" of a status of waitpid.
std::string ExitText(int wait_status);

// The last `lines` lines of a file, "" when it cannot be read.
std::string LastLines(const std::string& path, int lines);

}  // namespace trainyard::client
