// ListEvents: the durable events of a job, or of the cluster, oldest first: what `why` and `events` show.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

constexpr uint32_t kEventsDefault = 1'000;
constexpr uint32_t kEventsMax = 10'000;

v1::ListEventsResponse TakeNewest(const History& history, const v1::ListEventsRequest& request) {
  size_t most = request.limit() == 0 ? kEventsDefault : std::min(request.limit(), kEventsMax);
  v1::ListEventsResponse response;
  const auto& events = history.durable();
  auto first = std::upper_bound(events.begin(), events.end(), request.after_sequence(),
                                [](uint64_t after, const EventPtr& event) { return after < event->sequence(); });
  if (static_cast<size_t>(events.end() - first) > most) first = events.end() - static_cast<ptrdiff_t>(most);
  for (; first != events.end(); ++first) *response.add_events() = **first;
  return response;
}

}  // namespace

void Run(Turn& turn, ListEvents& event) {
  const v1::ListEventsRequest& request = event.request;
  if (request.job_id().empty()) {
    turn.Emit(Reply{event.call, absl::OkStatus(), TakeNewest(turn.state.cluster, request)});
    return;
  }
  auto it = turn.state.jobs.find(JobId(request.job_id()));
  if (it == turn.state.jobs.end()) {
    turn.Emit(Reply{event.call, absl::NotFoundError(absl::StrCat("no job ", request.job_id())), {}});
    return;
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), TakeNewest(it->second.history, request)});
}

}  // namespace trainyard
