// Hosts that could not run a job although nothing is wrong with the job (JobRecord.avoided): the host does not have the
// job's recorded checkpoint (its folder is not shared) or its data, could not start a trainer, failed command.check,
// or had a full disk. The job waits or is placed elsewhere. A host without the checkpoint or the data, or with a full
// disk, is tried again after some time. Every avoided host is tried again when a new daemon attaches or an operator
// requests that.
#pragma once

#include <map>
#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// Excludes the failed rank's host from the job's placement, if the host was the cause.
void AvoidFailedHost(Turn& turn, Job& job);

// Allows the host again, because the job ran there or a new daemon has attached.
void StopAvoiding(Turn& turn, Job& job, const HostName& host);
// Allows all hosts of the job again, because an operator requested it.
void StopAvoidingAll(Turn& turn, Job& job);

// Schedules the job if an avoided host may be used again.
void ScheduleIfAvoidanceEnded(Turn& turn, Job& job);

// Returns the hosts that are avoided at `now`, each with the reason. Hosts that the job may use as a last resort
// (AvoidedHost.last_resort) are included only if `with_last_resorts`.
std::map<std::string, std::string> AvoidedNow(absl::Time now, const Job& job, bool with_last_resorts);

}  // namespace trainyard
