// Whether a job may be started elsewhere when none of its hosts can be reached (recovery.abandon_after_s). Hosts that
// could run it are asked first whether its newest checkpoint is there: if the run folder is not shared, the unreachable
// ranks hold all that is left of the job, and giving them up would lose what they may still train.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Asks hosts about the checkpoint, and returns false as long as too few of them are known to have it.
bool MayAbandon(Turn& turn, Job& job);

// Ends the questions: a host of the job can be reached, or the job was given up.
void EndPathQueries(Turn& turn, Job& job);

// Takes the answers of one host.
void RecordPathAnswers(Turn& turn, const HostName& host, const v1::RankReports& reports);

}  // namespace trainyard
