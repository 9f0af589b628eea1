// What /proc reports about a process: its state, the CPU time it has used, the system call it is blocked in. To read
// /proc does not disturb the process (no ptrace), so healthy processes may be examined too.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/events.h"
#include "worker/agent/stack_request.h"

namespace trainyard::agent {

struct ProcessStat {
  std::string state;  // "R", "S", "D", "T", "t", "Z"
  double cpu_s = 0;   // user and system time of all threads
};

// Possible errors: NotFound: there is no such process. DataLoss: the text of /proc is not as expected.
absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid);
// From the text of /proc/<pid>/stat. Possible errors: DataLoss.
absl::StatusOr<ProcessStat> ParseProcessStat(absl::string_view text);

// From the text of /proc/<pid>/syscall: "fsync", or "system call 461" if the number is not known here; empty: the
// process is running, or is not blocked in a system call.
std::string ParseSystemCall(absl::string_view text);

// Names of the kernel's functions in the text of /proc/<pid>/stack, innermost first, at most `limit`.
std::vector<std::string> ParseKernelStack(absl::string_view text, size_t limit);

// Returns what can be seen immediately; the caller adds the CPU share.
v1::Examination InspectProcess(pid_t pid);

// Examines processes, one after another, on a thread of its own, because measuring the CPU share and requesting a stack
// take a while.
// Thread-safe. `post` is called from that thread.
class ProcessExaminer {
 public:
  using Post = std::function<void(Event)>;
  // Sleeps; returns false if the thread must end.
  using Pause = absl::FunctionRef<bool(absl::Duration)>;
  using StackRequest = std::function<StackAnswer(const ExamineProcess& request, Pause pause)>;

  // `request_stack` is called for requests with a stack; null: stacks are not available. `watch` is how long the CPU
  // share is measured.
  explicit ProcessExaminer(Post post, StackRequest request_stack = nullptr,
                           absl::Duration watch = absl::Milliseconds(300));
  // Ends the thread; requests without an answer get none.
  ~ProcessExaminer();
  ProcessExaminer(const ProcessExaminer&) = delete;
  ProcessExaminer& operator=(const ProcessExaminer&) = delete;

  // ProcessExamined follows, unless too many requests are waiting.
  void Examine(const ExamineProcess& request);

 private:
  void Run();
  bool Wait(absl::Duration duration);
  // None: the thread must end.
  std::optional<v1::Examination> ExamineOnce(const ExamineProcess& request);
  v1::Examination ExamineWithStack(const ExamineProcess& request);

  const Post post_;
  const StackRequest request_stack_;
  const absl::Duration watch_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<ExamineProcess> requests_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard::agent
