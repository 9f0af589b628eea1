// CancelJob: the wish is recorded, then the ranks are asked to stop at the next step, or ended at once where there is
// no step to stop at. Answers before they have ended.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

// A stop takes effect between two steps, and an evaluation or a save may be in between: three times the longest seen.
absl::Duration StopGrace(const Job& job) { return std::max(limits::kStopGrace, 3 * absl::Seconds(job.longest_s)); }

void Cancel(Turn& turn, Job& job, const std::string& reason) {
  bool stepping = job.state() == v1::JOB_STATE_RUNNING;
  job.record.set_cancelled(true);
  job.record.set_cancel_reason(reason.substr(0, 1024));
  std::string text = reason.empty() ? "cancelled" : absl::StrCat("cancelled: ", job.record.cancel_reason());
  turn.Move(job, LifecycleEvent::kCancel, std::move(text));
  if (IsFinal(job.state())) return;
  if (stepping) {
    job.stop = true;
    job.drop_at = turn.now + StopGrace(job);
    turn.PushAll(job);
  } else {
    DropTrainers(turn, job);
  }
  turn.Touch(job);
}

}  // namespace

void Run(Turn& turn, CancelJob& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) {
    turn.Emit(Reply{event.call, absl::NotFoundError(absl::StrCat("no job ", event.job.value())), {}});
    return;
  }
  Job& job = it->second;
  // A job that is being ended already is left to end as it does: the answer tells its state.
  if (!IsFinal(job.state()) && job.state() != v1::JOB_STATE_STOPPING) Cancel(turn, job, event.reason);
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeJob(job, turn.now)});
}

}  // namespace trainyard
