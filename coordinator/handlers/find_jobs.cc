// FindJobs: returns the jobs that match a text, by pages, so that users need not type a whole id. Changes nothing.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/page.h"

namespace trainyard {
namespace {

constexpr uint32_t kFoundDefault = 20;
constexpr char kUnknownToken[] = "unknown-";  // followed by the id of the last job of the page
constexpr char kFoundToken[] = "found-";      // followed by the submit index of the last job of the page

// Returns matching jobs that hosts run and this store does not know. They have only an id; they can be cancelled.
std::vector<JobId> UnknownJobs(const State& state, const std::string& text) {
  std::vector<JobId> found;
  if (state.unknown.contains(JobId(text))) return {JobId(text)};
  for (auto it = state.unknown.lower_bound(JobId(text)); it != state.unknown.end(); ++it) {
    if (!absl::StartsWith(it->value(), text)) break;
    found.push_back(*it);
  }
  return found;
}

std::vector<const Job*> ByBeginning(const State& state, const std::string& text) {
  std::vector<const Job*> found;
  for (auto it = state.jobs.lower_bound(JobId(text)); it != state.jobs.end(); ++it) {
    if (!absl::StartsWith(it->first.value(), text)) break;
    found.push_back(&it->second);
  }
  return found;
}

std::vector<const Job*> ByName(const State& state, const std::string& text) {
  std::vector<const Job*> found;
  for (const auto& [id, job] : state.jobs) {
    if (job.head().spec().name() == text) found.push_back(&job);
  }
  return found;
}

std::vector<const Job*> Find(const State& state, const std::string& text, bool by_name) {
  if (auto exact = state.jobs.find(JobId(text)); exact != state.jobs.end()) return {&exact->second};
  std::vector<const Job*> found = ByBeginning(state, text);
  if (found.empty() && by_name) found = ByName(state, text);
  std::sort(found.begin(), found.end(),
            [](const Job* a, const Job* b) { return a->record.submit_index() > b->record.submit_index(); });
  return found;
}

// The position of a page: unknown jobs come first, in the order of their ids, then the others, newest first.
struct FindPosition {
  std::string unknown_after;
  bool unknown_done = false;
  uint64_t before = UINT64_MAX;
};

bool ReadFindToken(absl::string_view token, FindPosition* position) {
  if (token.empty()) return true;
  if (absl::ConsumePrefix(&token, kUnknownToken)) {
    position->unknown_after = std::string(token);
    return !token.empty();
  }
  position->unknown_done = true;
  return absl::ConsumePrefix(&token, kFoundToken) && ReadPosition(token, &position->before);
}

}  // namespace

void Run(Turn& turn, FindJobs& event) {
  const std::string& text = event.request.text();
  if (text.empty()) {
    return turn.Emit(
        Reply{event.call, InvalidFieldError("text", "text is empty; it must be an id, its beginning or a name"), {}});
  }
  FindPosition position;
  if (!ReadFindToken(event.request.page_token(), &position)) {
    return turn.Emit(Reply{event.call, PageTokenError(event.request.page_token()), {}});
  }
  const std::vector<JobId> unknown = UnknownJobs(turn.state, text);
  const std::vector<const Job*> found = Find(turn.state, text, /*by_name=*/unknown.empty());
  v1::FindJobsResponse response;
  response.set_total(static_cast<uint32_t>(unknown.size() + found.size()));
  PageSpace space(event.request.page_size(), kFoundDefault);
  for (const JobId& id : unknown) {
    if (position.unknown_done || id.value() <= position.unknown_after) continue;
    if (!space.Take(id.value().size())) {
      response.set_next_page_token(absl::StrCat(kUnknownToken, response.jobs().rbegin()->job_id()));
      return turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
    }
    response.add_jobs()->set_job_id(id.value());
  }
  uint64_t before = position.before;
  for (const Job* one : found) {
    if (one->record.submit_index() >= position.before) continue;
    if (!space.Take(one->head().spec().name().size() + one->id.value().size())) {
      response.set_next_page_token(absl::StrCat(kFoundToken, before));
      break;
    }
    before = one->record.submit_index();
    v1::FoundJob& job = *response.add_jobs();
    job.set_job_id(one->id.value());
    job.set_name(one->head().spec().name());
    job.set_state(one->state());
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
