// WatchJob: a watcher requests the events after its position, and receives a batch now or once there are any.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {

void Run(Turn& turn, WatchJob& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) {
    turn.Emit(EndWatch{event.watch, absl::NotFoundError(absl::StrCat("no job ", event.job.value()))});
    return;
  }
  Job& job = it->second;
  if (event.first && event.position.sequence > job.last_sequence) {
    turn.Emit(EndWatch{event.watch,
                       absl::OutOfRangeError(absl::StrCat("after_sequence ", event.position.sequence, " is newer than ",
                                                          job.last_sequence, ", the last event of job ", job.id.value(),
                                                          "; watch from 0"))});
    return;
  }
  if (auto batch = MakeWatchBatch(job, event.watch, event.position)) {
    turn.Emit(*std::move(batch));
  } else {
    job.waiting_watchers[event.watch] = event.position;
  }
}

}  // namespace trainyard
