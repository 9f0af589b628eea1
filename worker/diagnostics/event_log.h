// Records when one rank did what: gather, forward, free, backward, reduce, receive and step, each with its unit, in the
// order in which they began. Tests read the events, and with `diagnostics.events` they are written as a Chrome trace
// (chrome://tracing, Perfetto).
//
//   EventLog log(SteadyNanoseconds);
//   const int64_t gather = BeginEvent(&log, EventKind::kGather, "h.3");
//   ...
//   EndEvent(&log, gather);
//
// Not thread-safe: used only by the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard {

enum class EventKind { kGather, kForward, kFree, kBackward, kReduce, kStep, kReceive };
const char* EventKindName(EventKind kind);  // "gather"

struct Event {
  EventKind kind = EventKind::kStep;
  int unit = 0;       // an index into EventLog::units()
  uint64_t step = 0;  // of the job
  int64_t began_ns = 0;
  int64_t ended_ns = -1;  // -1: it has not ended. A kFree has no duration
};

// Reads the host's monotonic clock, so that traces of ranks on one host can be combined.
int64_t SteadyNanoseconds();

class EventLog {
 public:
  // `now_ns` must be monotonic. Events beyond `limit` are only counted.
  explicit EventLog(std::function<int64_t()> now_ns, size_t limit = kLimit);

  void set_step(uint64_t step) { step_ = step; }
  // Returns a number for End; -1 beyond the limit.
  int64_t Begin(EventKind kind, absl::string_view unit);
  void End(int64_t event);  // -1: does nothing

  const std::vector<Event>& events() const { return events_; }
  const std::vector<std::string>& units() const { return units_; }
  uint64_t num_dropped() const { return num_dropped_; }
  // "forward h.3", in order.
  std::vector<std::string> Lines() const;

  static constexpr size_t kLimit = size_t{1} << 20;

 private:
  const std::function<int64_t()> now_ns_;
  const size_t limit_;
  uint64_t step_ = 0;
  std::vector<Event> events_;
  std::vector<std::string> units_;
  absl::flat_hash_map<std::string, int> unit_indices_;
  uint64_t num_dropped_ = 0;
};

// BeginEvent and EndEvent are for callers whose log may be null.
inline int64_t BeginEvent(EventLog* log, EventKind kind, absl::string_view unit) {
  return log == nullptr ? -1 : log->Begin(kind, unit);
}
inline void EndEvent(EventLog* log, int64_t event) {
  if (log != nullptr) log->End(event);
}

// Formats a Chrome trace as JSON, with gathers and reductions in one row and all other events in another.
std::string ChromeTrace(const EventLog& log, int rank, absl::string_view host);

// "<run folder>/diagnostics/trace-rank-00003.json".
std::string TracePath(const std::string& run_folder, int rank);
// Writes the trace to TracePath and replaces an older one. Possible errors: those of the file system.
absl::Status WriteTrace(const EventLog& log, const std::string& run_folder, int rank, absl::string_view host);

}  // namespace trainyard
