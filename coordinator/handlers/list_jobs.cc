// ListJobs: returns jobs by pages, newest first. Changes nothing.
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/job_status.h"
#include "coordinator/handlers/page.h"

namespace trainyard {
namespace {

constexpr uint32_t kPageDefault = 100;
constexpr char kJobsToken[] = "before-";  // followed by the submit index of the last job of the page

v1::ListResponse ListOnly(const Turn& turn, const ListJobs& event) {
  v1::ListResponse response;
  for (const JobId& id : event.only) {
    const auto job = turn.state.jobs.find(id);
    if (job == turn.state.jobs.end()) continue;
    *response.add_jobs() = event.brief ? MakeBrief(job->second) : MakeHead(job->second);
  }
  return response;
}

}  // namespace

void Run(Turn& turn, ListJobs& event) {
  if (!event.only.empty()) return turn.Emit(Reply{event.call, absl::OkStatus(), ListOnly(turn, event)});
  const v1::ListRequest& request = event.request;
  uint64_t before = turn.state.next_submit_index;
  absl::string_view token = request.page_token();
  if (!token.empty() && (!absl::ConsumePrefix(&token, kJobsToken) || !ReadPosition(token, &before))) {
    return turn.Emit(Reply{event.call, PageTokenError(request.page_token()), {}});
  }
  PageSpace space(request.page_size(), kPageDefault);
  v1::ListResponse response;
  uint64_t last = before;  // the submit index of the last job of the page
  const auto& order = turn.state.by_submission;
  for (auto it = order.lower_bound(before); it != order.begin();) {
    --it;
    const Job& job = turn.state.jobs.at(it->second);
    const auto& states = request.states();
    if (!states.empty() && std::count(states.begin(), states.end(), job.state()) == 0) continue;
    if (!request.namespace_().empty() && job.namespace_name() != request.namespace_()) continue;
    v1::Job entry = event.brief ? MakeBrief(job) : MakeHead(job);
    if (!space.Take(entry.ByteSizeLong())) {
      // The page is full and there is more: the next page starts below the last job of this page.
      response.set_next_page_token(absl::StrCat(kJobsToken, last));
      break;
    }
    *response.add_jobs() = std::move(entry);
    last = it->first;
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
