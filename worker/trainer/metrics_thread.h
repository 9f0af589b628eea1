// The thread of rank 0 that checks the fence of the run folder (run_folder.h) and appends the lines of each step to
// metrics.jsonl, those of steps within 50 ms together. The folder may be on a network file system whose server does not
// answer. Then even the `stat` of the fence blocks, and if the loop made these calls, every rank would wait for rank 0.
// Instead, the lines wait in memory, and training continues.
//
//   metrics.Write(MetricsLine(record))   for each step; returns immediately
//   metrics.fence()                      what the newest check has found
//   metrics.Await(absl::Seconds(1))      before the commit of a save: its checkpoint must not precede its line
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/saving/leavable_thread.h"
#include "worker/trainer/metrics.h"

namespace trainyard {

class MetricsThread {
 public:
  // `file`: null if no metrics are written; the fence is checked nevertheless. `check_fence` owns what it uses, because
  // the thread may be left behind while it calls it (StepFence in run_folder.h). `clock`: a steady clock.
  MetricsThread(std::unique_ptr<MetricsFile> file, std::function<absl::Status()> check_fence,
                Clock& clock = Clock::GetSteadyClock());
  // Returns when the remaining lines are written, or after two seconds.
  ~MetricsThread();
  MetricsThread(const MetricsThread&) = delete;
  MetricsThread& operator=(const MetricsThread&) = delete;

  // Has the fence checked, and then the line appended: in about 50 ms, or immediately if a caller awaits it. No line is
  // appended once the fence belongs to another generation or job. A line is dropped if more than kPendingBytesMax wait.
  void Write(absl::string_view line);
  // Has the fence checked.
  void Check();
  // Waits until all calls before are done. Returns false if they are not after `limit`, and immediately if the folder
  // has not answered for longer than that already.
  bool Await(absl::Duration limit);
  // Returns what the newest check has found; OK before the first. Possible errors: those of `check_fence`.
  absl::Status fence() const;
  // Returns a sentence for the log if lines cannot be written or have to wait for long; each such time is reported
  // once. Empty: there is nothing new.
  std::string TakeWarning();

 private:
  struct State;
  static void Serve(State& state);

  const std::shared_ptr<State> state_;
  std::unique_ptr<LeavableThread> thread_;
};

}  // namespace trainyard
