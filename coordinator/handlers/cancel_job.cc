// CancelJob: records the request, then asks the ranks to stop at the next step, or ends them immediately if they make
// no steps. With a save, the job stops as for a pause and continues if the save fails; a script continues until it has
// saved. Answers before the ranks have ended.
#include "coordinator/handlers/cancel_job.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/job_status.h"
#include "coordinator/handlers/save_job.h"

namespace trainyard {
namespace {

// Returns "cancelled: enough"; does not repeat the word if the reason begins with it ("cancelled by trainctl cancel").
std::string CancelText(absl::string_view what, const std::string& given) {
  absl::string_view reason = given;
  if (!absl::ConsumePrefix(&reason, "cancelled")) return WithReason(what, given);
  if (what == "cancelled") return CutText(given, 1024);
  absl::ConsumePrefix(&reason, ":");
  return WithReason(what, std::string(absl::StripAsciiWhitespace(reason)));
}

}  // namespace

void Cancel(Turn& turn, Job& job, const std::string& reason) {
  if (IsEndDecided(job)) return;
  ReleaseHeld(turn, job);
  bool is_training = job.state() == v1::JOB_STATE_RUNNING && !job.record.has_failure();
  job.record.set_cancelled(true);
  job.record.clear_cancel_when_saved();
  job.record.set_cancel_reason(CutText(reason, 1024));
  std::string text = CancelText("cancelled", reason);
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, text);
  if (job.state() == v1::JOB_STATE_STOPPING) {
    // The group was being ended for a pause or a restart: only the outcome changes.
    job.record.clear_ending();
    turn.SetReason(job, std::move(text));
    // Requests a new stop, because a failed save would undo the earlier one.
    if (job.current.stop && !job.current.nothing_desired) StopAtStep(turn, job);
    turn.Save(job);
    turn.Touch(job);
    return;
  }
  turn.Move(job, LifecycleEvent::kCancel, std::move(text));
  if (IsFinal(job.state())) return;
  if (is_training) {
    StopAtStep(turn, job);
  } else {
    DropTrainers(turn, job);
  }
  turn.Touch(job);
}

void ForgetCancelWhenSaved(Turn& turn, Job& job, absl::string_view what) {
  if (!job.record.cancel_when_saved()) return;
  job.record.clear_cancel_when_saved();
  job.record.clear_cancel_reason();
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo,
              absl::StrCat("the job is ", what, ", so it is not cancelled any more when its script has saved"));
}

namespace {

// A script saves when it finds the request, and is ended after that.
absl::Status CancelWhenSaved(Turn& turn, Job& job, const std::string& reason) {
  if (job.record.cancel_when_saved()) return absl::OkStatus();
  constexpr char kWhat[] = "the job will be cancelled when its script has saved";
  if (absl::Status status = RequestSave(turn, job, WithReason(kWhat, reason)); !status.ok()) return status;
  job.record.set_cancel_when_saved(true);
  job.record.set_cancel_reason(CutText(reason, 1024));
  turn.SetReason(job, kWhat);
  turn.Save(job);
  return absl::OkStatus();
}

// REQUIRES: the job has not ended.
absl::Status CancelWithSave(Turn& turn, Job& job, const std::string& reason) {
  // A repeated request finds the job being cancelled and changes nothing.
  const bool is_cancelled = job.record.ending() == v1::JobRecord::ENDING_CANCEL ||
                            (job.record.cancelled() && job.head().spec().has_command());
  if (job.state() == v1::JOB_STATE_STOPPING && is_cancelled) return absl::OkStatus();
  if (job.head().spec().has_command()) return CancelWhenSaved(turn, job, reason);
  const bool is_training =
      job.state() == v1::JOB_STATE_RUNNING && !job.record.has_failure() && job.head().spec().has_train();
  const bool is_stopping_at_step =
      job.state() == v1::JOB_STATE_STOPPING && job.current.stop && !job.current.nothing_desired;
  if (job.held_at != 0 || (!is_training && !is_stopping_at_step)) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                      job.head().reason(), "): the job is not training, so there is ",
                                                      "nothing to save; cancel it without --save"));
  }
  std::string text = CancelText("cancelled, with a save", reason);
  if (is_training) {
    EndGroup(turn, job, v1::JobRecord::ENDING_CANCEL, std::move(text), /*now=*/false);
    return absl::OkStatus();
  }
  // A pause, a restart or a preemption saves before the ranks exit, too, so only the outcome changes.
  if (!ContinuesLater(job.record.ending())) return absl::OkStatus();
  ChangeEnding(turn, job, v1::JobRecord::ENDING_CANCEL, std::move(text));
  return absl::OkStatus();
}

// Cancels a job that is not recorded; it may run nevertheless.
Reply CancelUnrecorded(Turn& turn, const CancelJob& event) {
  const std::string& id = event.job.value();
  if (HostsWithUnknown(turn.state, event.job).empty()) return {event.call, NoSuchJob(turn.state, id), {}};
  absl::Status version = CheckVersion(absl::StrCat("job ", id), /*version=*/0, event.expected_version);
  if (!version.ok()) return {event.call, std::move(version), {}};
  if (event.save) {
    return {event.call,
            absl::FailedPreconditionError(
                absl::StrCat("this coordinator's store does not know job ", id,
                             ", so it cannot request a save; cancel the job without --save, or wait for its end")),
            {}};
  }
  v1::Job cancelled = *CancelUnknown(turn, event.job, event.reason);
  if (!event.by.empty()) {
    turn.DecideCluster(HostName(), DecisionRule::kOperator, NoticeLevel::kInfo,
                       absl::StrCat("cancel of job ", id, " requested by ", event.by));
  }
  return {event.call, absl::OkStatus(), std::move(cancelled)};
}

}  // namespace

void Run(Turn& turn, CancelJob& event) {
  if (!turn.state.jobs.contains(event.job)) return turn.Emit(CancelUnrecorded(turn, event));
  AnswerForJob(turn, event.call, event.job.value(), event.expected_version, [&](Job& job) {
    if (event.save && !IsFinal(job.state())) {
      return Recorded(turn, job, "cancel", event.by, CancelWithSave(turn, job, event.reason));
    }
    // A job that is already being ended is left as it is; the answer has its state.
    if (IsFinal(job.state()) || IsEndDecided(job)) return absl::OkStatus();
    // The request is recorded first, because the job may be final after Cancel.
    absl::Status recorded = Recorded(turn, job, "cancel", event.by, absl::OkStatus());
    Cancel(turn, job, event.reason);
    return recorded;
  });
}

}  // namespace trainyard
