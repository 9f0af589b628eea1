// Step reports of rank 0 that are still in transit when the fact arrives that rank 0 has finished or exited. Its
// daemon forgets the trainer and its reports once that fact is acknowledged, so the acknowledgement waits until the
// reports are durable, or until a grace period has passed.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

// Reports and facts travel separately; a report usually arrives some 50 ms after the fact.
inline constexpr absl::Duration kReportsGrace = absl::Seconds(1);

// Whether rank 0 made steps whose reports have not arrived yet.
bool ReportsAreMissing(const Job& job);

// Stores the reports that have arrived, and delays the acknowledgement of `fact` (rank 0 has finished or exited) if
// some are missing.
void StoreLastReports(Turn& turn, Host& host, Job& job, const v1::Fact& fact);

// Acknowledges the facts of the host that come before the first one that waits for reports.
void Acknowledge(Turn& turn, Host& host);

// Ends the delay for this job if its reports have arrived or the time of the delay has passed.
void ReleaseDelayedAck(Turn& turn, Host& host, const Job& job);
// Ends the delays whose time has passed, for all hosts and jobs.
void ReleaseDelayedAcks(Turn& turn);

}  // namespace trainyard
