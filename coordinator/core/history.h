// The events of one job (or of the cluster) in memory, for watchers and for `trainctl events`: two lists that share one
// numbering. Durable events (states, notices, checkpoints, decisions, probes) are in the store, too. Reports of steps
// and evaluations are stored only when no daemon will send them again (Turn::StoreReports). Both lists are bounded;
// saves and info notices without a decision are dropped first. New reasons of an unchanged state are reports, too; of
// those that follow one another only the newest are kept, because the reason of a waiting job may change with each job
// that starts or ends, for days. Core thread only.
//
//   for (uint64_t dropped : history.AddDurable(event)) ... delete its record
//   history.Next(position, 256, batch);   // moves `position`
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/limits.h"
#include "coordinator/core/effect.h"

namespace trainyard {

// Returns `text`, cut to `bytes` with "..." at its end if it is longer; never cuts inside a character.
std::string CutText(absl::string_view text, size_t bytes);

class History {
 public:
  struct Limits {
    size_t durable = limits::kDurableEvents;
    size_t first = limits::kDurableEventsFirst;  // this many of the oldest durable events are dropped last
    size_t reports = limits::kJobEvents;
    size_t reasons = 16;  // new reasons of a state that follow one another
  };

  History() = default;
  explicit History(Limits limits) : limits_(limits) {}

  // Returns the sequence numbers of the durable events that were dropped. REQUIRES: the sequence number of the event is
  // greater than all earlier ones.
  std::vector<uint64_t> AddDurable(EventPtr event);
  // Returns the number of reports that were dropped, without older reasons. REQUIRES: as above.
  size_t AddReport(EventPtr event);

  // What may be dropped: only saves and info notices without a decision, or everything.
  enum class Dropped { kRepetitive, kAny };
  // Drops durable events until at least `bytes` are freed or only `min_events` events are left. Returns the sequence
  // numbers of the dropped events. The newest event stays. kAny drops saves and info notices without a decision first.
  std::vector<uint64_t> Shrink(size_t bytes, size_t min_events, Dropped what);
  void DropReports() { reports_.clear(); }

  // Appends the events after `position` in order of sequence until `events` has `max_events`, and moves the position
  // behind them. Returns whether there are no more.
  bool Next(WatchPosition& position, size_t max_events, std::vector<EventPtr>& events) const;

  const std::deque<EventPtr>& durable() const { return durable_; }
  const std::deque<EventPtr>& reports() const { return reports_; }
  size_t durable_bytes() const { return durable_bytes_; }
  bool empty() const { return durable_.empty() && reports_.empty(); }
  uint64_t last_sequence() const;

 private:
  uint64_t DropLeastImportant();
  uint64_t DropAt(size_t index);

  Limits limits_;
  std::deque<EventPtr> durable_;
  std::deque<EventPtr> reports_;
  size_t durable_bytes_ = 0;
};

}  // namespace trainyard
