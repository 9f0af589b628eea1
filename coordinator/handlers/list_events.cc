// ListEvents: returns the durable events of a job or of the cluster, oldest first, for `trainctl why` and `trainctl
// events`. Pages stay well below the limit of a message. The page token contains the start of the next page and the end
// of the whole answer, so that no page contains events that happen after the first call. For the status page, returns
// the thinned reports of steps and evaluations instead. Changes nothing.
#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/page.h"
#include "coordinator/handlers/thin_reports.h"

namespace trainyard {
namespace {

constexpr uint32_t kEventsDefault = 1'000;
constexpr char kEventsToken[] = "events";

// Events with sequence numbers above `after`, up to `last`.
struct EventRange {
  uint64_t after = 0;
  uint64_t last = 0;
};

std::string MakeToken(const EventRange& range) { return absl::StrCat(kEventsToken, "-", range.after, "-", range.last); }

absl::StatusOr<EventRange> ReadToken(const std::string& token) {
  std::vector<absl::string_view> parts = absl::StrSplit(token, '-');
  EventRange range;
  if (parts.size() != 3 || parts[0] != kEventsToken || !ReadPosition(parts[1], &range.after) ||
      !ReadPosition(parts[2], &range.last)) {
    return PageTokenError(token);
  }
  return range;
}

std::deque<EventPtr>::const_iterator FirstEventAfter(const std::deque<EventPtr>& events, uint64_t after) {
  return std::upper_bound(events.begin(), events.end(), after,
                          [](uint64_t sequence, const EventPtr& event) { return sequence < event->sequence(); });
}

absl::StatusOr<v1::ListEventsResponse> ReadPage(const History& history, uint64_t dropped,
                                                const v1::ListEventsRequest& request) {
  const auto& events = history.durable();
  v1::ListEventsResponse response;
  // A caller that passes after_sequence or a token was informed about dropped events by an earlier answer.
  if (request.after_sequence() == 0 && request.page_token().empty()) response.set_dropped(dropped);
  if (events.empty()) return response;
  EventRange range{.after = request.after_sequence(), .last = events.back()->sequence()};
  if (!request.page_token().empty()) {
    absl::StatusOr<EventRange> from_token = ReadToken(request.page_token());
    if (!from_token.ok()) return from_token.status();
    range = *from_token;
  }
  auto first = FirstEventAfter(events, range.after);
  const auto end = FirstEventAfter(events, range.last);
  const auto max_events =
      static_cast<ptrdiff_t>(request.limit() == 0 ? kEventsDefault : std::min(request.limit(), kEventsPageMax));
  if (request.page_token().empty() && end - first > max_events) first = end - max_events;
  PageSpace space(request.page_size(), kEventsPageMax);
  for (; first < end; ++first) {
    if (!space.Take((*first)->ByteSizeLong())) {
      response.set_next_page_token(MakeToken({.after = (*std::prev(first))->sequence(), .last = range.last}));
      break;
    }
    *response.add_events() = **first;
  }
  return response;
}

}  // namespace

void Run(Turn& turn, ListEvents& event) {
  const v1::ListEventsRequest& request = event.request;
  const History* history = &turn.state.cluster;
  // The cluster's events are numbered without gaps, so the number of dropped events is the difference.
  uint64_t dropped = turn.state.cluster_sequence - std::min(turn.state.cluster_sequence, history->durable().size());
  if (!request.job_id().empty()) {
    auto it = turn.state.jobs.find(JobId(request.job_id()));
    if (it == turn.state.jobs.end()) {
      return turn.Emit(Reply{event.call, NoSuchJob(turn.state, request.job_id()), {}});
    }
    history = &it->second.history;
    dropped = it->second.record.events_dropped();
  }
  if (event.max_reports > 0) {
    return turn.Emit(Reply{event.call, absl::OkStatus(), ThinReports(history->reports(), event.max_reports)});
  }
  absl::StatusOr<v1::ListEventsResponse> response = ReadPage(*history, dropped, request);
  if (!response.ok()) return turn.Emit(Reply{event.call, response.status(), {}});
  turn.Emit(Reply{event.call, absl::OkStatus(), *std::move(response)});
}

}  // namespace trainyard
