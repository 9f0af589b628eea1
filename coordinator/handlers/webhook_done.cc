// WebhookDone: the webhook of a job was delivered, or given up.
#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/job_status.h"
#include "coordinator/handlers/webhooks.h"

namespace trainyard {

void RequestWebhook(Turn& turn, Job& job) {
  if (job.head().spec().on_end().webhook().empty()) return;
  job.record.set_webhook_due(true);
  if (!turn.state.options.webhooks) {
    turn.Info(absl::StrCat("job ", job.id.value(), ": its webhook is not sent, because this coordinator sends none ",
                           "(--no-webhooks, or webhooks: false in its configuration)"));
  }
  ResumeWebhook(turn, job);
}

void ResumeWebhook(Turn& turn, const Job& job) {
  if (!job.record.webhook_due() || !turn.state.options.webhooks) return;
  v1::Job head = MakeHead(job);
  turn.Emit(WebhookDue{head.spec().on_end().webhook(), std::move(head)});
}

void Run(Turn& turn, WebhookDone& event) {
  auto job = turn.state.jobs.find(event.job);
  if (job == turn.state.jobs.end() || !job->second.record.webhook_due()) return;
  job->second.record.clear_webhook_due();
  turn.Save(job->second);
  const std::string attempts = Plural(static_cast<uint64_t>(event.attempts), "attempt");
  if (event.problem.empty()) {
    turn.Info(absl::StrCat("job ", event.job.value(), ": its webhook was delivered after ", attempts));
  } else {
    turn.Warn(absl::StrCat("job ", event.job.value(), ": its webhook was not delivered: ", event.problem, " (",
                           attempts, ")"));
  }
}

}  // namespace trainyard
