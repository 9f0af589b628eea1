// The bounded queue before the core: many threads put events in, the loop's thread takes them out in batches. A full
// queue never blocks the thread that fills it: a call is refused, a stream stops reading until the queue was drained.
// Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"

namespace trainyard {

class EventQueue {
 public:
  explicit EventQueue(size_t limit) : limit_(limit) {}

  // For calls. False: the queue is full or closed, and the event was not taken.
  [[nodiscard]] bool TryPost(Event event);

  // For streams, whose events must not be lost. False: taken, but the queue is full; read no more until `WhenDrained`.
  bool Post(Event event);

  // Runs `resume` once the queue has room: at once, or on the loop's thread.
  void WhenDrained(std::function<void()> resume);

  // Waits until there is an event, `until` has passed or the queue is closed; takes up to `most` events.
  std::vector<Event> Take(absl::Time until, size_t most);

  // From here on nothing is taken in.
  void Close();
  bool closed() const;
  // Waits for at most `wait`. Returns whether it is closed.
  bool AwaitClosed(absl::Duration wait) const;
  size_t size() const;

 private:
  const size_t limit_;
  mutable absl::Mutex mu_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> paused_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
