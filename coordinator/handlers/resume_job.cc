// ResumeJob: a paused job waits for slots again, and resumes from its newest checkpoint.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/plural.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/cancel_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/policy/saves.h"

namespace trainyard {
namespace {

absl::Status Resume(Turn& turn, Job& job, const v1::ResumeRequest& request) {
  if (job.held_at != 0)
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), ": ", job.head().reason()));
  bool being_paused = job.state() == v1::JOB_STATE_STOPPING && job.record.ending() == v1::JobRecord::ENDING_PAUSE;
  if (job.state() != v1::JOB_STATE_PAUSED && !being_paused) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                      job.head().reason(), "), not PAUSED"));
  }
  std::string reason = WithReason("resumed", request.reason());
  if (being_paused) {
    // The group is still ending; a new one is formed directly after it.
    ChangeEnding(turn, job, v1::JobRecord::ENDING_RESTART, std::move(reason));
    return absl::OkStatus();
  }
  uint64_t steps_made = std::max(job.published.step(), job.head().last_step());
  const bool has_checkpoint = NewestResumeStep(job.head(), job.record.grants()).has_value();
  // What a script has saved is not known here.
  const bool is_command = job.head().spec().has_command();
  if (!is_command && steps_made > job.record.restored_step() && !has_checkpoint && !request.from_start()) {
    return AddReason(
        absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " has made ", Plural(steps_made, "step"),
                                                   " and no checkpoint holds them: resuming it makes them again; "
                                                   "confirm that with --from-start, or cancel the job")),
        reasons::kUnsavedSteps);
  }
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, reason);
  StopAvoidingAll(turn, job);
  turn.Move(job, LifecycleEvent::kResume, std::move(reason));
  return absl::OkStatus();
}

// Whether the call repeats one that took effect, because its answer was lost: the job was resumed, and neither paused
// nor ended since.
bool IsRepeatedResume(const Job& job) {
  if (!job.record.resumed() || job.held_at != 0) return false;
  if (job.state() == v1::JOB_STATE_STOPPING) {
    return ContinuesLater(job.record.ending()) && job.record.ending() != v1::JobRecord::ENDING_PAUSE;
  }
  return job.state() != v1::JOB_STATE_PAUSED && !IsFinal(job.state());
}

}  // namespace

void Run(Turn& turn, ResumeJob& event) {
  AnswerForJob(turn, event.call, event.request, [&](Job& job) {
    if (IsRepeatedResume(job)) return absl::OkStatus();
    absl::Status status = Recorded(turn, job, "resume", event.by, Resume(turn, job, event.request));
    if (status.ok()) {
      ForgetCancelWhenSaved(turn, job, "resumed");
      job.record.set_resumed(true);
      turn.Save(job);
    }
    return status;
  });
}

}  // namespace trainyard
