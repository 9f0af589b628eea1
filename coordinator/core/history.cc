#include "coordinator/core/history.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/notice.h"

namespace trainyard {
namespace {

std::deque<EventPtr>::const_iterator FirstAfter(const std::deque<EventPtr>& events, uint64_t sequence) {
  return std::upper_bound(events.begin(), events.end(), sequence,
                          [](uint64_t after, const EventPtr& event) { return after < event->sequence(); });
}

// A step is identified by its number: after a restart of the coordinator it arrives again with a new sequence number.
bool IsSeen(const v1::Event& event, const WatchPosition& position) {
  if (event.has_step()) return event.step().step() <= position.step;
  if (event.has_eval()) return event.eval().step() <= position.eval_step;
  return false;
}

// Whether the event does not help to explain the job's state: a save (the newest are in the job) or an info notice
// without a decision.
bool IsRepetitive(const v1::Event& event) {
  if (event.has_notice())
    return event.notice().level() == LevelName(NoticeLevel::kInfo) && event.notice().rule().empty();
  return event.has_checkpoint();
}

}  // namespace

std::string CutText(absl::string_view text, size_t bytes) {
  constexpr absl::string_view kEllipsis = "...";
  if (text.size() <= bytes) return std::string(text);
  size_t end = bytes - std::min(bytes, kEllipsis.size());
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), kEllipsis);
}

std::vector<uint64_t> History::AddDurable(EventPtr event) {
  durable_bytes_ += event->ByteSizeLong();
  durable_.push_back(std::move(event));
  std::vector<uint64_t> dropped;
  while (durable_.size() > limits_.durable) dropped.push_back(DropLeastImportant());
  return dropped;
}

size_t History::AddReport(EventPtr event) {
  reports_.push_back(std::move(event));
  // At the end there are at most as many reasons as the limit, and this one.
  const auto other =
      std::find_if(reports_.rbegin(), reports_.rend(), [](const auto& one) { return !one->has_state(); });
  if (static_cast<size_t>(other - reports_.rbegin()) > limits_.reasons) reports_.erase(other.base());
  if (reports_.size() <= limits_.reports) return 0;
  reports_.pop_front();
  return 1;
}

std::vector<uint64_t> History::Shrink(size_t bytes, size_t min_events, Dropped what) {
  std::vector<uint64_t> dropped;
  const size_t goal = durable_bytes_ - std::min(bytes, durable_bytes_);
  for (size_t index = 0; what == Dropped::kRepetitive && index + 1 < durable_.size();) {
    if (durable_bytes_ <= goal || durable_.size() <= min_events) return dropped;
    if (IsRepetitive(*durable_[index])) {
      dropped.push_back(DropAt(index));
    } else {
      ++index;
    }
  }
  if (what == Dropped::kRepetitive) return dropped;
  while (durable_bytes_ > goal && durable_.size() > std::max<size_t>(min_events, 1))
    dropped.push_back(DropLeastImportant());
  return dropped;
}

// Drops the oldest repetitive event, or else the oldest one after the protected first ones.
uint64_t History::DropLeastImportant() {
  const auto newest = std::prev(durable_.end());
  auto repetitive = std::find_if(durable_.begin(), newest, [](const EventPtr& event) { return IsRepetitive(*event); });
  if (repetitive != newest) return DropAt(static_cast<size_t>(repetitive - durable_.begin()));
  return DropAt(durable_.size() > limits_.first + 1 ? limits_.first : 0);
}

uint64_t History::DropAt(size_t index) {
  auto at = durable_.begin() + static_cast<ptrdiff_t>(index);
  uint64_t sequence = (*at)->sequence();
  durable_bytes_ -= (*at)->ByteSizeLong();
  durable_.erase(at);
  return sequence;
}

bool History::Next(WatchPosition& position, size_t max_events, std::vector<EventPtr>& events) const {
  auto durable = FirstAfter(durable_, position.sequence);
  auto report = FirstAfter(reports_, position.sequence);
  while (durable != durable_.end() || report != reports_.end()) {
    if (events.size() >= max_events) return false;
    bool take_durable =
        report == reports_.end() || (durable != durable_.end() && (*durable)->sequence() < (*report)->sequence());
    const EventPtr& event = take_durable ? *durable++ : *report++;
    position.sequence = event->sequence();
    if (!IsSeen(*event, position)) events.push_back(event);
  }
  return true;
}

uint64_t History::last_sequence() const {
  return std::max(durable_.empty() ? 0 : durable_.back()->sequence(),
                  reports_.empty() ? 0 : reports_.back()->sequence());
}

}  // namespace trainyard
