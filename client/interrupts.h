// Handles the signals that end a waiting program. The first Ctrl-C requests a clean end, the second an immediate one.
// SIGTERM has the same effect, and SIGHUP (the terminal was closed) too, unless OnHangup has set a callback.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/poll_thread.h"

namespace trainyard::client {

// SIGINT, SIGTERM and SIGHUP, except those that this process ignores. `nohup` and the `&` of a script start a program
// with a signal ignored, so that the signal has no effect on the program. Blocking such a signal would undo this,
// because Linux delivers a blocked signal to a signalfd even if it is ignored.
sigset_t InterruptSet();

// Blocks the InterruptSet and SIGCHLD in this thread and in threads that it will start. Call it before starting any
// thread.
void BlockSignals();

// Runs callbacks on its own thread; they should return soon. Thread-safe.
class Interrupts {
 public:
  // REQUIRES: BlockSignals was called. `on_second` normally does not return.
  explicit Interrupts(std::function<void()> on_second);
  ~Interrupts();

  // Sets the callback of the first interrupt. If that interrupt has already arrived, runs the callback now, on the
  // calling thread. Returns once no previous callback runs, so that the caller can destroy what that callback used.
  void OnFirst(std::function<void()> on_first);
  // Sets the callback of SIGHUP, which then no longer counts as an interrupt; null: it counts again. Returns
  // once no previous callback runs, like OnFirst.
  void OnHangup(std::function<void()> on_hangup);
  // Returns whether an interrupt has arrived.
  bool interrupted() const;

 private:
  void HandleSignals();
  void HandleInterrupt();

  const int fd_;
  const std::function<void()> on_second_;
  mutable absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Mutex callback_mu_;  // held while a callback of OnFirst or OnHangup runs
  std::function<void()> on_first_ ABSL_GUARDED_BY(callback_mu_);
  std::function<void()> on_hangup_ ABSL_GUARDED_BY(callback_mu_);
  std::unique_ptr<PollThread> thread_;  // uses the fields above, so it is destroyed first
};

}  // namespace trainyard::client
