// SaveJob: counts and records the request; rank 0 receives it with its desired state, and all ranks save after the same
// step. A request that no save has answered stays for the next generation.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/save_job.h"

namespace trainyard {
namespace {

constexpr absl::Duration kScriptReportAge = absl::Seconds(15);

}  // namespace

absl::Status RequestSave(Turn& turn, Job& job, const std::string& reason) {
  if (job.held_at != 0) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), ": ", job.head().reason()));
  }
  const bool is_command = job.head().spec().has_command();
  if (job.state() != v1::JOB_STATE_RUNNING || job.record.has_failure() || job.head().spec().has_probe()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                      job.head().reason(),
                                                      "): the job is not training, so there is nothing to save"));
  }
  if (is_command && !job.current.saves_on_request) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id.value(), ": rank 0 has not reported yet that it saves on request; a script reports ",
        "that when it calls trainyard.should_save() (docs/python.md)"));
  }
  const Rank& first = job.ranks.front();
  if (is_command && (first.ended() || turn.now - first.last_report > kScriptReportAge)) {
    return AddReason(
        absl::UnavailableError(absl::StrCat("job ", job.id.value(), ": rank 0 ",
                                            first.ended() ? "has ended" : "has not reported for some seconds",
                                            ", so it would not answer a request to save")),
        reasons::kRankNotReporting);
  }
  job.record.set_save_requests(NextRequest(turn, job, job.record.save_requests()));
  job.record.set_save_awaited(true);
  // The step of this group, which may repeat steps that an earlier group has reported.
  job.record.set_save_asked_step(first.last_step);
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo, WithReason("a save was requested", reason));
  turn.Save(job);
  turn.Push(job.ranks.front().host());
  return absl::OkStatus();
}

void Run(Turn& turn, SaveJob& event) {
  AnswerOnceForJob(turn, event.call, "save", event.request, [&](Job& job) {
    return Recorded(turn, job, "save", event.by, RequestSave(turn, job, event.request.reason()));
  });
}

}  // namespace trainyard
