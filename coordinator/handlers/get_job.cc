// GetJob: returns the job as the API reports it. Changes nothing.
#include "absl/status/status.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/job_status.h"

namespace trainyard {

void Run(Turn& turn, GetJob& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) {
    turn.Emit(Reply{event.call, NoSuchJob(turn.state, event.job.value()), {}});
    return;
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeJob(turn, it->second)});
}

}  // namespace trainyard
