// The signals that end a program that waits. Ctrl-C, twice: the first asks for a clean end, the second for an immediate
// one; SIGTERM counts alike. SIGHUP, the end of the terminal, counts alike too, unless it has been given a meaning of
// its own.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/poll_thread.h"

namespace trainyard::client {

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this thread and those it will start. Call before any thread is started.
void BlockSignals();

// Callbacks run on a thread of this object's own and should return soon. Thread-safe.
class Interrupts {
 public:
  // REQUIRES: BlockSignals was called. `on_second` normally does not return.
  explicit Interrupts(std::function<void()> on_second);
  ~Interrupts();

  // What the first does; when it has come already, that is done now, on the caller's thread. Returns once no earlier
  // callback runs any more, so that what that one used may go.
  void OnFirst(std::function<void()> on_first);
  // What a SIGHUP does from now on, instead of counting as an interrupt; null: it counts again. Returns as OnFirst.
  void OnHangup(std::function<void()> on_hangup);
  // Whether one has come.
  bool interrupted() const;

 private:
  void Take();
  void Count();

  const int fd_;
  const std::function<void()> on_second_;
  mutable absl::Mutex mu_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Mutex acting_mu_;  // held while the first's or the hangup's callback runs
  std::function<void()> on_first_ ABSL_GUARDED_BY(acting_mu_);
  std::function<void()> on_hangup_ ABSL_GUARDED_BY(acting_mu_);
  std::unique_ptr<PollThread> thread_;  // uses the above, so it ends first
};

}  // namespace trainyard::client
