#include "coordinator/handlers/prune_finished.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/log_readers.h"

namespace trainyard {

void RememberForgotten(Turn& turn, const JobId& id) {
  State& state = turn.state;
  if (!state.forgotten_ids.insert(id).second) return;
  const uint64_t number = state.forgotten.empty() ? 1 : state.forgotten.rbegin()->first + 1;
  state.forgotten[number] = id;
  turn.Put({ForgottenKey(number), id.value()});
  while (state.forgotten.size() > limits::kJobsForgotten) {
    auto oldest = state.forgotten.begin();
    turn.Delete(ForgottenKey(oldest->first));
    state.forgotten_ids.erase(oldest->second);
    state.forgotten.erase(oldest);
  }
}

void PruneFinished(Turn& turn) {
  State& state = turn.state;
  while (state.finished.size() > state.options.finished_jobs) {
    JobId id = state.finished.front();
    state.finished.pop_front();
    Job& job = state.jobs.at(id);
    std::vector<ReaderId> readers;
    for (const auto& [reader_id, reader] : state.readers) {
      if (reader.request.job_id() == id.value()) readers.push_back(reader_id);
    }
    const absl::Status deleted =
        AddResource(AddReason(absl::NotFoundError(absl::StrCat("job ", id.value(), " was deleted from the history")),
                              reasons::kJobDeleted),
                    "job", id.value());
    for (ReaderId reader : readers) CloseLogReader(turn, reader, deleted);
    // The job's record is deleted first: if only a part of these deletions is committed, the next coordinator ignores
    // the remaining records, which belong to no job.
    turn.Delete(JobKey(id));
    turn.Delete(PublishedKey(id));
    for (size_t rank = 0; rank < job.ranks.size(); rank += kRanksPerPart) {
      turn.Delete(RankPartKey(id, job.head().generation(), static_cast<uint32_t>(rank / kRanksPerPart)));
    }
    for (const EventPtr& event : job.history.durable()) turn.Delete(EventKey(id, event->sequence()));
    for (uint64_t part : job.stored_parts) turn.Delete(ReportPartKey(id, part));
    state.durable_bytes -= job.history.durable_bytes();
    RememberForgotten(turn, id);
    turn.Emit(JobForgotten{id});
    state.by_submission.erase(job.record.submit_index());
    state.jobs.erase(id);
  }
}

}  // namespace trainyard
