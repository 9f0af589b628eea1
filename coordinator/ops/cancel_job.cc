// CancelJob: the wish is recorded, then the ranks are asked to stop at the next step, or ended at once where there is
// no step to stop at. Answers before they have ended.
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

void Cancel(Turn& turn, Job& job, const std::string& reason) {
  ReleaseHeld(turn, job);
  bool stepping = job.state() == v1::JOB_STATE_RUNNING && !job.record.has_failure();
  job.record.set_cancelled(true);
  job.record.set_cancel_reason(CutText(reason, 1024));
  std::string text = reason.empty() ? "cancelled" : absl::StrCat("cancelled: ", job.record.cancel_reason());
  turn.Decide(job, "operator", "info", text);
  if (job.state() == v1::JOB_STATE_STOPPING) {
    // It was being ended to be paused or restarted: the same end, with another outcome.
    job.record.clear_ending();
    turn.SetReason(job, std::move(text));
    // The stop that is under way may be undone by a failed save; this one is not.
    if (job.stop && !job.nothing_desired) StopAtStep(turn, job);
    turn.Save(job);
    turn.Touch(job);
    return;
  }
  turn.Move(job, LifecycleEvent::kCancel, std::move(text));
  if (IsFinal(job.state())) return;
  if (stepping) {
    StopAtStep(turn, job);
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
  bool ending = job.state() == v1::JOB_STATE_STOPPING && job.record.ending() == v1::JobRecord::ENDING_UNSPECIFIED;
  if (!IsFinal(job.state()) && !ending) Cancel(turn, job, event.reason);
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeJob(turn, job)});
}

}  // namespace trainyard
