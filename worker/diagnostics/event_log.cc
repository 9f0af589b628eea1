#include "worker/diagnostics/event_log.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr int kComputationRow = 1, kCommunicationRow = 2;

// Names come from a model or a host; no other string in a trace needs quoting.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

std::string Microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

bool Communicates(EventKind kind) { return kind == EventKind::kGather || kind == EventKind::kReduce; }

void AppendMetadata(std::string* out, int rank, int row, absl::string_view what, absl::string_view name) {
  absl::StrAppend(out, "{\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", row, ",\"name\":\"", what,
                  "\",\"args\":{\"name\":", Quoted(name), "}},\n");
}

// Formats one event for the trace: a free as an instant ("i"), a computation or a receive, in which the rank waits, as
// one entry with its duration ("X"). A gather or a reduction becomes a pair of asynchronous entries ("b" and "e"),
// because these operations overlap without being nested.
void AppendEvent(std::string* out, const EventLog& log, const Event& event, int64_t id, int rank) {
  const int64_t ended = std::max(event.ended_ns, event.began_ns);
  const std::string name = Quoted(absl::StrCat(EventKindName(event.kind), " ", log.units()[event.unit]));
  const std::string args =
      absl::StrCat(",\"args\":{\"step\":", event.step, event.ended_ns < 0 ? ",\"unfinished\":true" : "", "}}");
  auto common_fields = [&](absl::string_view phase, int row, int64_t at) {
    return absl::StrCat("{\"ph\":\"", phase, "\",\"pid\":", rank, ",\"tid\":", row, ",\"ts\":", Microseconds(at),
                        ",\"cat\":\"", EventKindName(event.kind), "\",\"name\":", name);
  };
  if (event.kind == EventKind::kFree) {
    absl::StrAppend(out, common_fields("i", kComputationRow, event.began_ns), ",\"s\":\"t\"", args);
  } else if (Communicates(event.kind)) {
    absl::StrAppend(out, common_fields("b", kCommunicationRow, event.began_ns), ",\"id\":", id, args, ",\n");
    absl::StrAppend(out, common_fields("e", kCommunicationRow, ended), ",\"id\":", id, args);
  } else {
    absl::StrAppend(out, common_fields("X", kComputationRow, event.began_ns),
                    ",\"dur\":", Microseconds(ended - event.began_ns), args);
  }
}

}  // namespace

const char* EventKindName(EventKind kind) {
  switch (kind) {
    case EventKind::kGather:
      return "gather";
    case EventKind::kForward:
      return "forward";
    case EventKind::kFree:
      return "free";
    case EventKind::kBackward:
      return "backward";
    case EventKind::kReduce:
      return "reduce";
    case EventKind::kStep:
      return "step";
    case EventKind::kReceive:
      return "receive";
  }
  return "";
}

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

EventLog::EventLog(std::function<int64_t()> now_ns, size_t limit) : now_ns_(std::move(now_ns)), limit_(limit) {}

int64_t EventLog::Begin(EventKind kind, absl::string_view unit) {
  if (events_.size() >= limit_) {
    ++num_dropped_;
    return -1;
  }
  auto [it, is_new] = unit_indices_.try_emplace(unit, static_cast<int>(units_.size()));
  if (is_new) units_.emplace_back(unit);
  const int64_t now = now_ns_();
  events_.push_back({.kind = kind,
                     .unit = it->second,
                     .step = step_,
                     .began_ns = now,
                     .ended_ns = kind == EventKind::kFree ? now : -1});
  return static_cast<int64_t>(events_.size()) - 1;
}

void EventLog::End(int64_t event) {
  if (event >= 0) events_[static_cast<size_t>(event)].ended_ns = now_ns_();
}

std::vector<std::string> EventLog::Lines() const {
  std::vector<std::string> lines;
  for (const Event& event : events_) lines.push_back(absl::StrCat(EventKindName(event.kind), " ", units_[event.unit]));
  return lines;
}

std::string ChromeTrace(const EventLog& log, int rank, absl::string_view host) {
  std::string out =
      absl::StrCat("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"rank\":", rank, ",\"host\":", Quoted(host),
                   ",\"events_dropped\":", log.num_dropped(), "},\"traceEvents\":[\n");
  AppendMetadata(&out, rank, 0, "process_name", absl::StrCat("rank ", rank, " on ", host));
  AppendMetadata(&out, rank, kComputationRow, "thread_name", "computation");
  AppendMetadata(&out, rank, kCommunicationRow, "thread_name", "communication");
  int64_t id = 0;
  for (const Event& event : log.events()) {
    AppendEvent(&out, log, event, id++, rank);
    absl::StrAppend(&out, ",\n");
  }
  out.resize(out.size() - 2);  // removes the last comma
  return out + "\n]}\n";
}

std::string TracePath(const std::string& run_folder, int rank) {
  return JoinPath(JoinPath(run_folder, "diagnostics"), absl::StrFormat("trace-rank-%05d.json", rank));
}

absl::Status WriteTrace(const EventLog& log, const std::string& run_folder, int rank, absl::string_view host) {
  RETURN_IF_ERROR(MakeFolders(JoinPath(run_folder, "diagnostics")));
  return WriteFileAtomically(TracePath(run_folder, rank), ChromeTrace(log, rank, host));
}

}  // namespace trainyard
