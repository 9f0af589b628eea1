// RestartJob: ends the group, after a step and a save unless `now` is set, and forms a new one.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/lose_hosts.h"

namespace trainyard {
namespace {

constexpr char kImmediateRestart[] = "the operator requested an immediate restart";

absl::Status Restart(Turn& turn, Job& job, const v1::RestartRequest& request) {
  if (job.held_at != 0)
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), ": ", job.head().reason()));
  switch (job.state()) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      EndGroup(turn, job, v1::JobRecord::ENDING_RESTART, WithReason("restart requested", request.reason()),
               request.now());
      if (request.now()) LoseUnreachable(turn, job, kImmediateRestart);
      return absl::OkStatus();
    case v1::JOB_STATE_RECOVERING:
      StopAvoidingAll(turn, job);
      if (request.now()) LoseUnreachable(turn, job, kImmediateRestart);
      return absl::OkStatus();  // it is being started again already
    case v1::JOB_STATE_STOPPING:
      if (job.record.ending() != v1::JobRecord::ENDING_RESTART) break;
      if (request.now()) {
        DropTrainers(turn, job);
        LoseUnreachable(turn, job, kImmediateRestart);
      }
      return absl::OkStatus();
    default:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                    job.head().reason(), "): it has no group to restart",
                                                    job.state() == v1::JOB_STATE_PAUSED ? "; resume it" : ""));
}

}  // namespace

void Run(Turn& turn, RestartJob& event) {
  AnswerOnceForJob(turn, event.call, event.request.now() ? "restart now" : "restart", event.request, [&](Job& job) {
    return Recorded(turn, job, "restart", event.by, Restart(turn, job, event.request));
  });
}

}  // namespace trainyard
