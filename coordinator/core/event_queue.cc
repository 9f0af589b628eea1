#include "coordinator/core/event_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

namespace trainyard {

size_t QueuedBytes(const Event& event) {
  if (const auto* received = std::get_if<RankReportsReceived>(&event)) return received->bytes;
  if (const auto* facts = std::get_if<HostFactsReceived>(&event)) return facts->bytes;
  return 0;
}

bool EventQueue::TryPost(Event event) {
  bool wake;
  {
    absl::MutexLock lock(&mu_);
    if (closed_ || events_.size() >= limit_) return false;
    events_.push_back(std::move(event));
    wake = std::exchange(consumer_waits_, false);
  }
  // Signals after releasing the lock, because the woken thread acquires it, and only if the loop's thread waits.
  if (wake) changed_.SignalAll();
  return true;
}

bool EventQueue::Post(Event event) {
  bool wake = false;
  bool has_space = PostWithoutWaking(std::move(event), wake);
  if (wake) changed_.SignalAll();
  return has_space;
}

bool EventQueue::PostWithoutWaking(Event event, bool& wake) {
  absl::MutexLock lock(&mu_);
  if (closed_) return true;
  if (auto* received = std::get_if<RankReportsReceived>(&event)) {
    // A half-full queue drops reports, so that there is space for facts and calls.
    if ((events_.size() >= limit_ / 2 || report_bytes_ >= report_bytes_limit_ / 2) && !DropReports(*received))
      return !IsFull();
    received->bytes = received->reports.ByteSizeLong();
    report_bytes_ += received->bytes;
  } else if (auto* facts = std::get_if<HostFactsReceived>(&event)) {
    facts->bytes = facts->batch.ByteSizeLong();
    fact_bytes_ += facts->bytes;
  }
  events_.push_back(std::move(event));
  wake = std::exchange(consumer_waits_, false);
  return !IsFull();
}

bool EventQueue::DropReports(RankReportsReceived& received) {
  auto* reports = received.reports.mutable_reports();
  int kept = 0;
  for (int i = 0; i < reports->size(); ++i) {
    const v1::RankReport& report = reports->Get(i);
    const bool must_arrive = !report.steps().empty() || !report.evals().empty() || report.has_script_checkpoint();
    if (report.key().rank() != 0 || !must_arrive) continue;
    if (kept != i) reports->SwapElements(kept, i);
    ++kept;
  }
  dropped_reports_ += static_cast<uint64_t>(reports->size() - kept);
  reports->DeleteSubrange(kept, reports->size() - kept);
  return kept > 0;
}

uint64_t EventQueue::TakeDroppedReports() {
  absl::MutexLock lock(&mu_);
  return std::exchange(dropped_reports_, 0);
}

void EventQueue::WhenDrained(std::function<void()> resume) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_ && IsFull()) {
      resume_callbacks_.push_back(std::move(resume));
      return;
    }
  }
  resume();
}

std::vector<Event> EventQueue::Take(absl::Duration wait, size_t max_events) {
  std::vector<Event> batch;
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu_);
    changed_.AwaitFor(&mu_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      consumer_waits_ = events_.empty() && !closed_;
      return !consumer_waits_;
    });
    consumer_waits_ = false;
    size_t count = std::min(max_events, events_.size());
    batch.reserve(count + 1);
    std::move(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(batch));
    events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
    for (const Event& event : batch) {
      if (const auto* received = std::get_if<RankReportsReceived>(&event)) report_bytes_ -= received->bytes;
      if (const auto* facts = std::get_if<HostFactsReceived>(&event)) fact_bytes_ -= facts->bytes;
    }
    if (!HasReached(2) || closed_) callbacks.swap(resume_callbacks_);
  }
  for (auto& resume : callbacks) resume();
  return batch;
}

void EventQueue::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  changed_.SignalAll();
}

bool EventQueue::closed() const {
  absl::MutexLock lock(&mu_);
  return closed_;
}

bool EventQueue::AwaitClosed(absl::Duration wait) const {
  absl::MutexLock lock(&mu_);
  return changed_.AwaitFor(&mu_, wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_; });
}

size_t EventQueue::size() const {
  absl::MutexLock lock(&mu_);
  return events_.size();
}

}  // namespace trainyard
