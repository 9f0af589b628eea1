// What waits for the daemon's event thread. Bounded by its senders: a session, a link and the outbox have one event
// here each, links and shims are limited in number, and a wish to be woken is kept once however often it is said.
//
// Waits by the steady clock (absl::Mutex waits by the wall clock, whose step back would be slept through). Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "worker/agent/events.h"

namespace trainyard::agent {

class EventQueue {
 public:
  void Post(Event event) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      events_.push_back(std::move(event));
    }
    any_.notify_one();
  }

  // The thread is to look at its deadlines anew.
  void Wake() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      woken_ = true;
    }
    any_.notify_one();
  }

  // The next event; none when `wait` has passed or somebody wakes the thread.
  std::optional<Event> Take(absl::Duration wait) {
    std::unique_lock<std::mutex> lock(mu_);
    auto ready = [this] { return !events_.empty() || woken_; };
    if (wait == absl::InfiniteDuration()) {
      any_.wait(lock, ready);
    } else {
      any_.wait_for(lock, absl::ToChronoNanoseconds(wait), ready);
    }
    woken_ = false;
    if (events_.empty()) return std::nullopt;
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  size_t size() {
    std::lock_guard<std::mutex> lock(mu_);
    return events_.size();
  }

 private:
  std::mutex mu_;
  std::condition_variable any_;
  std::deque<Event> events_;
  bool woken_ = false;
};

}  // namespace trainyard::agent
