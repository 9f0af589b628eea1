// Decides whether a job may be started elsewhere when none of its hosts can be reached (recovery.abandon_after_s).
// Hosts that could run it must first answer whether they have its newest checkpoint: if the run folder is not shared,
// only the unreachable hosts have it, and giving them up would lose the job's progress.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Returns whether the job needs no checkpoint (it does not start again, or has none), or enough hosts are known to have
// it; queries the other hosts.
bool MayAbandon(Turn& turn, Job& job);

// Removes the queries, because a host of the job can be reached again or the job has been started elsewhere.
void EndPathQueries(Turn& turn, Job& job);

// Records the answers of one host.
void RecordPathAnswers(Turn& turn, const HostName& host, const v1::RankReports& reports);

}  // namespace trainyard
