// The queue of the daemon's event thread. Its senders bound its length: a session, a link and the outbox have at most
// one event here each, links and shims are limited in number, and repeated calls of Wake count once.
//
// Waits by the steady clock (absl::Mutex waits by the wall clock, which may step back). Thread-safe.
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

  // Makes the event thread check its deadlines again.
  void Wake() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      woken_ = true;
    }
    any_.notify_one();
  }

  // Returns the next event; none if `wait` has passed or Wake was called.
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
