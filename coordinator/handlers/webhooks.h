// The webhook of a job (on_end.webhook). It is due from the end of the job until this coordinator or a later one has
// delivered it or given it up. A delivery that the store does not know yet is repeated, so receivers may get it twice.
// A coordinator that sends no webhooks (CoreOptions::webhooks) delivers none, not even for a job that an earlier one
// has accepted; it stays due. Used on the core's thread only.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Requests the delivery for a job that has just become final, if it has a webhook.
void RequestWebhook(Turn& turn, Job& job);

// Requests the delivery again after a restart of the coordinator, if it is still due.
void ResumeWebhook(Turn& turn, const Job& job);

}  // namespace trainyard
