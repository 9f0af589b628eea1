// The queue of the daemon's event thread. It needs no limit of its own, because its senders bound its length: a
// session, a link and the outbox each have at most one event in the queue, links and shims are limited in number, and
// repeated calls of Wake count once.
//
// Thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"
#include "worker/agent/events.h"

namespace trainyard::agent {

class EventQueue {
 public:
  void Post(Event event) {
    {
      absl::MutexLock lock(&mu_);
      events_.push_back(std::move(event));
    }
    changed_.SignalAll();
  }

  // Makes the event thread check its deadlines again.
  void Wake() {
    {
      absl::MutexLock lock(&mu_);
      woken_ = true;
    }
    changed_.SignalAll();
  }

  // Returns the next event, after waiting for one until `wait` has passed or Wake is called; nullopt if there is none.
  std::optional<Event> Pop(absl::Duration wait) {
    absl::MutexLock lock(&mu_);
    changed_.AwaitFor(&mu_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !events_.empty() || woken_; });
    woken_ = false;
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  size_t size() {
    absl::MutexLock lock(&mu_);
    return events_.size();
  }

 private:
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard::agent
