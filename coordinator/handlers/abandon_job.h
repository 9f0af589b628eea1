// Whether a job may be started elsewhere when none of its hosts can be reached (recovery.abandon_after_s). Hosts that
// could run it are queried first whether they have its newest checkpoint: if the run folder is not shared, the
// unreachable ranks hold all that is left of the job, and giving them up would lose what they may still train.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns whether enough hosts are known to have the checkpoint, and sends queries to those that are not.
bool MayAbandon(Turn& turn, Job& job);

// Removes the queries: a host of the job can be reached, or the job was given up.
void EndPathQueries(Turn& turn, Job& job);

// Records the answers of one host.
void RecordPathAnswers(Turn& turn, const HostName& host, const v1::RankReports& reports);

}  // namespace trainyard
