// Runs a program that may hang, and reads its output: a GPU library can block in the driver, and a Python installation
// can be on a file system that no longer answers. Linux only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard::client {

// Runs `command` with empty standard input in a session of its own, and returns what it writes to standard output. A
// command name without '/' is looked up in PATH. At the end of `limit` the session is killed; a process that the kernel
// does not end is abandoned, not awaited. Processes that keep the output open after the program has exited are not
// awaited either; those in the session are killed. Blocks for `limit` and a fraction of a second at most. Errors:
// NotFound: there is no such program. DeadlineExceeded: it did not end in time. Internal: it failed (the message has
// the end of its standard error). ResourceExhausted: it wrote more than 1 MiB.
absl::StatusOr<std::string> OutputOfProgram(const std::vector<std::string>& command, absl::Duration limit);

}  // namespace trainyard::client
