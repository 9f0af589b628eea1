#include "coordinator/core/event_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

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
  if (auto* told = std::get_if<RankReportsTold>(&event)) {
    // Half full is crowded: facts and calls must find room.
    if ((events_.size() >= limit_ / 2 || report_bytes_ >= report_bytes_limit_ / 2) && !Thin(*told)) return !IsFull();
    told->bytes = told->reports.ByteSizeLong();
    report_bytes_ += told->bytes;
  }
  events_.push_back(std::move(event));
  return !IsFull();
}

bool EventQueue::Thin(RankReportsTold& told) {
  auto* reports = told.reports.mutable_reports();
  int kept = 0;
  for (int i = 0; i < reports->size(); ++i) {
    const v1::RankReport& report = reports->Get(i);
    if (report.key().rank() != 0 || (report.steps().empty() && report.evals().empty())) continue;
    if (kept != i) reports->SwapElements(kept, i);
    ++kept;
  }
  shed_ += static_cast<uint64_t>(reports->size() - kept);
  reports->DeleteSubrange(kept, reports->size() - kept);
  return kept > 0;
}

uint64_t EventQueue::TakeShed() {
  absl::MutexLock lock(&mu_);
  return std::exchange(shed_, 0);
}

void EventQueue::WhenDrained(std::function<void()> resume) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_ && IsFull()) {
      paused_.push_back(std::move(resume));
      return;
    }
  }
  resume();
}

std::vector<Event> EventQueue::Take(absl::Duration wait, size_t most) {
  std::vector<Event> taken;
  std::vector<std::function<void()>> resumed;
  {
    absl::MutexLock lock(&mu_);
    auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !events_.empty() || closed_; };
    mu_.AwaitWithTimeout(absl::Condition(&ready), wait);
    size_t count = std::min(most, events_.size());
    taken.reserve(count + 1);
    std::move(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(taken));
    events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(count));
    for (const Event& event : taken) {
      if (const auto* told = std::get_if<RankReportsTold>(&event)) report_bytes_ -= told->bytes;
    }
    if ((events_.size() < limit_ / 2 && report_bytes_ < report_bytes_limit_ / 2) || closed_) resumed.swap(paused_);
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
