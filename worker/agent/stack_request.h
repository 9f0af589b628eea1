// Requests the stack of a trainer's main thread: the trainer's own signal handler writes the stack to a file in its
// rank folder (worker/trainer/stack_signal.h). This needs neither a debugger nor the permission for ptrace, and takes
// milliseconds, whereas gdb takes seconds of CPU to read LibTorch's symbols. The signal may interrupt a system call, so
// only a process that will be killed anyway receives it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace trainyard::agent {

inline constexpr char kStackFile[] = "stack";  // in the rank folder

struct StackAnswer {
  std::vector<std::string> frames;  // innermost first
  std::string note;                 // why there are no frames
};

// Waits at most `limit` for the file. `pause` sleeps for the given time, and returns false if the wait must end early.
// REQUIRES: `pid` is the trainer of the rank folder `folder`.
StackAnswer RequestStack(pid_t pid, const std::string& folder, absl::Duration limit,
                         absl::FunctionRef<bool(absl::Duration)> pause);

}  // namespace trainyard::agent
