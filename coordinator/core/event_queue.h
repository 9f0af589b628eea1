// The bounded queue before the core: many threads put events in, the loop's thread takes them out in batches. A full
// queue never blocks the thread that fills it: a call is refused, a stream stops reading until the queue was drained.
//
// Reports are the bulk of what daemons say, and the newest of each rank is enough: where too many wait, those of ranks
// other than 0 are left out and counted. What rank 0 tells of steps is never left out; its stream waits instead.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "common/limits.h"
#include "coordinator/core/event.h"

namespace trainyard {

// What an event counts as where bytes are limited: facts and reports, once they have been in the queue.
size_t QueuedBytes(const Event& event);

class EventQueue {
 public:
  explicit EventQueue(size_t limit, size_t report_bytes = limits::kReportBytesQueued,
                      size_t fact_bytes = limits::kFactBytesQueued)
      : limit_(limit), report_bytes_limit_(report_bytes), fact_bytes_limit_(fact_bytes) {}

  // For calls. False: the queue is full or closed, and the event was not taken.
  [[nodiscard]] bool TryPost(Event event);

  // For streams, whose events must not be lost. False: taken, but the queue is full; read no more until `WhenDrained`.
  bool Post(Event event);

  // Runs `resume` once the queue has room: at once, or on the loop's thread.
  void WhenDrained(std::function<void()> resume);

  // Waits until there is an event, `wait` has passed or the queue is closed; takes up to `most` events.
  std::vector<Event> Take(absl::Duration wait, size_t most);

  // Reports left out since the last call.
  uint64_t TakeShed();

  // From here on nothing is taken in.
  void Close();
  bool closed() const;
  // Waits for at most `wait`. Returns whether it is closed.
  bool AwaitClosed(absl::Duration wait) const;
  size_t size() const;

 private:
  bool PostUnwoken(Event event, bool& wake);  // `wake`: who takes is to be woken
  template <typename Ready>
  bool Await(std::unique_lock<std::mutex>& lock, absl::Duration wait, Ready ready) const;
  // Leaves out of `told` what need not wait. Returns whether anything is left.
  bool Thin(RankReportsReceived& received);
  bool IsFull() const { return IsFull(1); }
  // Of 1 / `part` of each limit.
  bool IsFull(size_t part) const {
    return events_.size() >= limit_ / part || report_bytes_ >= report_bytes_limit_ / part ||
           fact_bytes_ >= fact_bytes_limit_ / part;
  }

  const size_t limit_;
  const size_t report_bytes_limit_;
  const size_t fact_bytes_limit_;
  // The standard ones: they wait by the steady clock, absl::Mutex by the wall clock, whose step back it sleeps through.
  mutable std::mutex mu_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Event> events_;
  size_t report_bytes_ = 0;  // of the reports among them
  size_t fact_bytes_ = 0;    // of the facts
  uint64_t shed_ = 0;
  std::vector<std::function<void()>> paused_;
  bool closed_ = false;
  bool taker_waits_ = false;
};

}  // namespace trainyard
