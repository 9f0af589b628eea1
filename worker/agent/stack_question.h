// Asks a trainer where its main thread is: its own handler of a signal writes the stack to a file in its rank folder
// (worker/trainer/stack_signal.h). Needs no debugger, no right to trace, and milliseconds: reading LibTorch's symbols
// takes gdb seconds of CPU. A system call that the thread is in may end early, so only a process that is to be killed
// is asked.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace trainyard::agent {

inline constexpr char kStackFile[] = "stack";

struct StackAnswer {
  std::vector<std::string> frames;  // innermost first; empty: `note` says why
  std::string note;
};

// Waits up to `limit`, in slices of `pause`, which returns false to end the wait. REQUIRES: `pid` is the trainer whose
// rank folder this is.
StackAnswer AskForStack(pid_t pid, const std::string& folder, absl::Duration limit,
                        absl::FunctionRef<bool(absl::Duration)> pause);

}  // namespace trainyard::agent
