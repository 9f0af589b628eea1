// OpenLogs: a reader requests the output of a job. The hosts of its ranks receive log requests (log_readers.h).
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/log_readers.h"

namespace trainyard {
namespace {

absl::Status CheckLogsRequest(const State& state, const v1::LogsRequest& request) {
  auto it = state.jobs.find(JobId(request.job_id()));
  if (it == state.jobs.end()) return NoSuchJob(state, request.job_id());
  // A command with min_ranks may run with fewer ranks than world_size(). A reader that follows the output also gets the
  // output of a later, larger group.
  const Job& job = it->second;
  const bool may_grow = request.follow() && !IsFinal(job.state());
  const size_t ranks = job.ranks.empty() || may_grow ? job.world_size() : job.ranks.size();
  for (uint32_t rank : request.ranks()) {
    if (rank < ranks) continue;
    const std::string why =
        ranks < job.world_size() ? absl::StrCat(": it runs with ", ranks, " of at most ", job.world_size()) : "";
    absl::Status status = absl::NotFoundError(
        absl::StrCat("job ", request.job_id(), " has no rank ", rank, "; its ranks are 0 to ", ranks - 1, why));
    return AboutJob(AddResource(AddReason(std::move(status), reasons::kRankNotFound), "rank", absl::StrCat(rank)), job);
  }
  return absl::OkStatus();
}

}  // namespace

void Run(Turn& turn, OpenLogs& event) {
  State& state = turn.state;
  if (absl::Status status = CheckLogsRequest(state, event.request); !status.ok()) {
    turn.Emit(EndLogs{event.reader, std::move(status)});
    return;
  }
  const Job& job = state.jobs.at(JobId(event.request.job_id()));
  LogReader reader;
  reader.id = event.reader;
  reader.request = std::move(event.request);
  if (IsFinal(job.state())) reader.request.set_follow(false);
  LogReader& kept = state.readers[event.reader] = std::move(reader);
  std::vector<std::string> request_ids;
  std::string missing = RequestLogs(turn, job, kept, request_ids);
  if (!missing.empty()) return CloseLogReader(turn, event.reader, NotAttached(missing));
  if (absl::Status status = CheckLogRequests(state, kept); !status.ok()) {
    return CloseLogReader(turn, event.reader, std::move(status));
  }
  turn.Emit(LogsOpened{event.reader, std::move(request_ids)});
  // No rank was ever placed, and the reader does not follow.
  if (kept.open.empty() && !kept.request.follow()) CloseLogReader(turn, event.reader, absl::OkStatus());
}

}  // namespace trainyard
