#include "coordinator/core/event_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace trainyard {

bool EventQueue::TryPost(Event event) {
  absl::MutexLock lock(&mu_);
  if (closed_ || events_.size() >= limit_) return false;
  events_.push_back(std::move(event));
  return true;
}

bool EventQueue::Post(Event event) {
  absl::MutexLock lock(&mu_);
  if (closed_) return true;
  events_.push_back(std::move(event));
  return events_.size() < limit_;
}

void EventQueue::WhenDrained(std::function<void()> resume) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_ && events_.size() >= limit_) {
      paused_.push_back(std::move(resume));
      return;
    }
  }
  resume();
}

std::vector<Event> EventQueue::Take(absl::Time until, size_t most) {
  std::vector<Event> taken;
  std::vector<std::function<void()>> resumed;
  {
    absl::MutexLock lock(&mu_);
    auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !events_.empty() || closed_; };
    mu_.AwaitWithDeadline(absl::Condition(&ready), until);
    size_t count = std::min(most, events_.size());
    taken.reserve(count + 1);
    std::move(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(taken));
    events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
    if (events_.size() < limit_ / 2 || closed_) resumed.swap(paused_);
  }
  for (auto& resume : resumed) resume();
  return taken;
}

void EventQueue::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

bool EventQueue::closed() const {
  absl::MutexLock lock(&mu_);
  return closed_;
}

bool EventQueue::AwaitClosed(absl::Duration wait) const {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&closed_), wait);
}

size_t EventQueue::size() const {
  absl::MutexLock lock(&mu_);
  return events_.size();
}

}  // namespace trainyard
