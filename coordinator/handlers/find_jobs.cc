// FindJobs: returns the jobs that match a text, so that users need not type a whole id. Changes nothing.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

constexpr size_t kFoundMax = 20;

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

}  // namespace

void Run(Turn& turn, FindJobs& event) {
  if (event.text.empty()) {
    turn.Emit(
        Reply{event.call, absl::InvalidArgumentError("text is empty; it must be an id, its beginning or a name"), {}});
    return;
  }
  const std::vector<JobId> unknown = UnknownJobs(turn.state, event.text);
  const std::vector<const Job*> found = Find(turn.state, event.text, /*by_name=*/unknown.empty());
  v1::FindJobsResponse response;
  response.set_total(static_cast<uint32_t>(unknown.size() + found.size()));
  for (size_t i = 0; i < std::min(unknown.size(), kFoundMax); ++i) response.add_jobs()->set_job_id(unknown[i].value());
  for (size_t i = 0; i < found.size() && static_cast<size_t>(response.jobs_size()) < kFoundMax; ++i) {
    v1::FoundJob& job = *response.add_jobs();
    job.set_job_id(found[i]->id.value());
    job.set_name(found[i]->head().spec().name());
    job.set_state(found[i]->state());
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
