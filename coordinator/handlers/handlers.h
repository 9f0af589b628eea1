// What each event does: one function per event, in a file of its name (SubmitJob is in submit_job.cc). All run on the
// core's thread, change the state through the turn and answer by effects. An error is an answer to the caller, never a
// failure of the core. Functions that several handlers share have headers of their own, next to this one.
#pragma once

#include "coordinator/core/event.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// ---- clients -------------------------------------------------------------------------------------------------------
void Run(Turn& turn, SubmitJob& event);
void Run(Turn& turn, GetJob& event);
void Run(Turn& turn, ListJobs& event);
void Run(Turn& turn, FindJobs& event);
void Run(Turn& turn, CancelJob& event);
void Run(Turn& turn, RestartJob& event);
void Run(Turn& turn, PauseJob& event);
void Run(Turn& turn, ResumeJob& event);
void Run(Turn& turn, SaveJob& event);
void Run(Turn& turn, SetPriority& event);
void Run(Turn& turn, GetQueue& event);
void Run(Turn& turn, SetHost& event);
void Run(Turn& turn, GetServerInfo& event);
void Run(Turn& turn, ListHosts& event);
void Run(Turn& turn, ListEvents& event);
void Run(Turn& turn, WatchJob& event);
void Run(Turn& turn, WatchClosed& event);
void Run(Turn& turn, OpenLogs& event);
void Run(Turn& turn, LogsClosed& event);

// ---- daemons -------------------------------------------------------------------------------------------------------
void Run(Turn& turn, AttachHost& event);
void Run(Turn& turn, DetachHost& event);
void Run(Turn& turn, HostDraining& event);
void Run(Turn& turn, HostTrouble& event);
void Run(Turn& turn, RevisionApplied& event);
void Run(Turn& turn, HostFactsReceived& event);
void Run(Turn& turn, RankReportsReceived& event);
void Run(Turn& turn, HostValuesReceived& event);
void Run(Turn& turn, LogPushEnded& event);

// ---- the sender of webhooks, and time ------------------------------------------------------------------------------
void Run(Turn& turn, WebhookDone& event);
void Run(Turn& turn, Tick& event);

}  // namespace trainyard
