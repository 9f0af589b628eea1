// The bounded queue in front of the core: many threads put events in, the loop's thread takes them out in batches. A
// full queue never blocks the thread that posts: a call is refused, and a stream stops reading until the queue has
// drained.
//
// Most of the traffic from daemons is reports, and the newest report of each rank is enough: if too many events wait,
// new reports are dropped and counted, except reports of rank 0 with a step, an evaluation or a checkpoint of a script.
// These are never dropped; the stream that sends them waits instead. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "common/steady_cond_var.h"
#include "coordinator/core/event.h"

namespace trainyard {

// Returns the bytes of an event that count toward the limits of the queue: 0 for events other than facts and reports,
// and for facts and reports that the queue has not accepted yet.
size_t QueuedBytes(const Event& event);

class EventQueue {
 public:
  explicit EventQueue(size_t limit, size_t report_bytes = limits::kReportBytesQueued,
                      size_t fact_bytes = limits::kFactBytesQueued)
      : limit_(limit), report_bytes_limit_(report_bytes), fact_bytes_limit_(fact_bytes) {}

  // For calls. False: the queue is full or closed, and did not accept the event.
  [[nodiscard]] bool TryPost(Event event);

  // For streams, whose events must not be lost, apart from the reports above. False: the event was accepted, but the
  // queue is full; read no more until `WhenDrained` calls back.
  bool Post(Event event);

  // Runs `resume` immediately if the queue is not full; otherwise on the loop's thread, once less than half of each
  // limit is used or the queue is closed.
  void WhenDrained(std::function<void()> resume);

  // Waits until there is an event, `wait` has passed or the queue is closed; then removes and returns up to
  // `max_events` events.
  std::vector<Event> Take(absl::Duration wait, size_t max_events);

  // Returns the number of reports dropped since the last call.
  uint64_t TakeDroppedReports();

  // The queue accepts no events from now on.
  void Close();
  bool closed() const;
  // Waits until the queue is closed, at most for `wait`. Returns whether it is.
  bool AwaitClosed(absl::Duration wait) const;
  size_t size() const;

 private:
  bool PostWithoutWaking(Event event, bool& wake);  // sets `wake` if the loop's thread must be woken
  // Keeps only reports of rank 0 with a step, an evaluation or a checkpoint of a script. Returns whether any are left.
  bool DropReports(RankReportsReceived& received) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFull() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return HasReached(1); }
  // Whether at least 1 / `divisor` of any limit is used.
  bool HasReached(size_t divisor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return events_.size() >= limit_ / divisor || report_bytes_ >= report_bytes_limit_ / divisor ||
           fact_bytes_ >= fact_bytes_limit_ / divisor;
  }

  const size_t limit_;
  const size_t report_bytes_limit_;
  const size_t fact_bytes_limit_;
  mutable absl::Mutex mu_;
  mutable SteadyCondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  size_t report_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the reports in events_
  size_t fact_bytes_ ABSL_GUARDED_BY(mu_) = 0;    // of the facts in events_
  uint64_t dropped_reports_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::function<void()>> resume_callbacks_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool consumer_waits_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
