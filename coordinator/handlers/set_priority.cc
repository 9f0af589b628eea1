// SetPriority: changes the place of a job in the queue, and whether it may preempt others or be preempted.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/policy/queue_rules.h"

namespace trainyard {
namespace {

absl::Status Set(Turn& turn, Job& job, const SetPriority& event) {
  const v1::SetPriorityRequest& request = event.request;
  if (IsFinal(job.state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), ": its priority no longer matters"));
  }
  const std::string problem = ProblemOfPriority(turn.state.options.queue, job.namespace_name(), request.priority());
  if (!problem.empty()) return AddReason(absl::FailedPreconditionError(problem), reasons::kNamespaceLimit);
  const uint32_t before = job.priority();
  if (before == request.priority()) return absl::OkStatus();
  job.head().set_priority(request.priority());
  turn.Decide(job, DecisionRule::kOperator, NoticeLevel::kInfo,
              WithReason(absl::StrCat("priority changed from ", before, " to ", request.priority()), request.reason()));
  absl::Status recorded = Recorded(turn, job, "set-priority", event.by, absl::OkStatus());
  turn.Save(job);
  turn.ScheduleAll();
  return recorded;
}

}  // namespace

void Run(Turn& turn, SetPriority& event) {
  AnswerForJob(turn, event.call, event.request, [&](Job& job) { return Set(turn, job, event); });
}

}  // namespace trainyard
