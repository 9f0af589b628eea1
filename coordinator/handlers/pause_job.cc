// PauseJob: ends the group, after a step and a save unless `now` is set, and frees the job's slots until it is resumed.
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/lose_hosts.h"

namespace trainyard {
namespace {

constexpr char kImmediatePause[] = "the operator requested an immediate pause";

absl::Status Pause(Turn& turn, Job& job, const v1::PauseRequest& request) {
  if (job.held_at != 0)
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), ": ", job.head().reason()));
  std::string reason = WithReason("paused", request.reason());
  switch (job.state()) {
    case v1::JOB_STATE_PAUSED:
      return absl::OkStatus();
    case v1::JOB_STATE_QUEUED:
      turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, reason);
      turn.Move(job, LifecycleEvent::kPause, std::move(reason));
      return absl::OkStatus();
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_RECOVERING:
      EndGroup(turn, job, v1::JobRecord::ENDING_PAUSE, std::move(reason), request.now());
      if (request.now()) LoseUnreachable(turn, job, kImmediatePause);
      return absl::OkStatus();
    case v1::JOB_STATE_STOPPING:
      if (job.record.ending() == v1::JobRecord::ENDING_UNSPECIFIED) break;
      if (job.record.ending() == v1::JobRecord::ENDING_CANCEL) break;
      if (job.record.ending() != v1::JobRecord::ENDING_PAUSE) {
        ChangeEnding(turn, job, v1::JobRecord::ENDING_PAUSE, std::move(reason));
      }
      if (request.now()) {
        DropTrainers(turn, job);
        LoseUnreachable(turn, job, kImmediatePause);
      }
      return absl::OkStatus();
    default:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                    job.head().reason(), "): there is nothing to pause"));
}

}  // namespace

void Run(Turn& turn, PauseJob& event) {
  AnswerForJob(turn, event.call, event.request, [&](Job& job) {
    absl::Status status = Recorded(turn, job, "pause", event.by, Pause(turn, job, event.request));
    if (status.ok() && job.record.resumed()) {
      job.record.clear_resumed();
      turn.Save(job);
    }
    return status;
  });
}

}  // namespace trainyard
