// WatchJob: a watcher requests the events after its position, and receives a batch when there are any.
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

absl::Status CheckPosition(const Job& job, const WatchJob& event) {
  const uint64_t after = event.position.sequence;
  if (after > job.last_sequence) {
    return AddReason(absl::OutOfRangeError(absl::StrCat("after_sequence ", after, " is newer than ", job.last_sequence,
                                                        ", the last event of job ", job.id.value(), "; watch from 0")),
                     reasons::kVersionUnknown);
  }
  // A watcher that begins at 0 requests all events that are stored.
  const uint64_t deleted = job.record.deleted_sequence();
  if (after == 0 || after >= deleted || event.allow_gap) return absl::OkStatus();
  return AddReason(absl::OutOfRangeError(
                       absl::StrCat("version ", after, " of job ", job.id.value(), " has expired: events after it, ",
                                    "up to number ", deleted, ", were deleted. Get the job and watch from its ",
                                    "resource_version, or watch with allow_gap to continue with what is stored")),
                   reasons::kVersionExpired);
}

}  // namespace

void Run(Turn& turn, WatchJob& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) {
    return turn.Emit(EndWatch{event.watch, NoSuchJob(turn.state, event.job.value())});
  }
  Job& job = it->second;
  if (event.first) {
    absl::Status status = CheckPosition(job, event);
    if (!status.ok()) return turn.Emit(EndWatch{event.watch, AboutJob(std::move(status), job)});
  }
  if (auto batch = MakeWatchBatch(job, event.watch, event.position)) {
    turn.Emit(*std::move(batch));
  } else {
    job.waiting_watchers[event.watch] = event.position;
  }
}

}  // namespace trainyard
