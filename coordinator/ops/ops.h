// What each event does: one function an event, in a file of its name. All run on the core's thread, change the state
// through the turn, and answer by effects; an error is an answer to its caller, never a failure of the core.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// ---- people and services -------------------------------------------------------------------------------------------
void Run(Turn& turn, SubmitJob& event);          // submit_job.cc
void Run(Turn& turn, GetJob& event);             // read_jobs.cc
void Run(Turn& turn, ListJobs& event);           // read_jobs.cc
void Run(Turn& turn, GetServerInfo& event);      // read_jobs.cc
void Run(Turn& turn, CancelJob& event);          // cancel_job.cc
void Run(Turn& turn, WatchJob& event);           // watch_job.cc
void Run(Turn& turn, WatchClosed& event);        // watch_job.cc
void Run(Turn& turn, OpenLogs& event);           // read_logs.cc
void Run(Turn& turn, LogsClosed& event);         // read_logs.cc
void Run(Turn& turn, LogPushEnded& event);       // read_logs.cc

// ---- daemons -------------------------------------------------------------------------------------------------------
void Run(Turn& turn, AttachHost& event);         // host_attached.cc
void Run(Turn& turn, DetachHost& event);         // host_detached.cc
void Run(Turn& turn, HostFactsTold& event);      // host_facts.cc
void Run(Turn& turn, RankReportsTold& event);    // rank_reports.cc
void Run(Turn& turn, RevisionApplied& event);    // revision_applied.cc
void Run(Turn& turn, PutValue& event);           // put_value.cc
void Run(Turn& turn, WatchValues& event);        // watch_values.cc
void Run(Turn& turn, WatchValuesClosed& event);  // watch_values.cc

// ---- time ----------------------------------------------------------------------------------------------------------
void Run(Turn& turn, Tick& event);               // tick_health.cc

// ---- parts that several of the above share -------------------------------------------------------------------------

// advance_job.cc: moves a job along as far as what is known of its ranks allows.
void AdvanceJob(Turn& turn, Job& job);
// The generation has failed: restart or give up, by policy/recovery. `last_lines` of the rank's output are told.
void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure);
// Nothing of the generation is desired any more: daemons kill what is left.
void DropTrainers(Turn& turn, Job& job);
// Whether each rank of the generation is known to have ended, or lies on a host that is unreachable.
bool AllEnded(const State& state, Job& job);

// place_jobs.cc: places those of the waiting jobs (by submit index) that fit, oldest first.
void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes);
// Free slots of every host that is attached and reachable, in name order.
struct HostSlots;
std::vector<HostSlots> FreeSlots(const State& state);

// trainer_facts.cc and checkpoint_facts.cc: one fact of a trainer of the current generation.
void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);
void ApplyCheckpointFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);
// A rank has ended; also for ends that nobody could tell.
void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit);

// watch_values.cc: how a store's watchers learn that it is sealed, or that its generation is over.
void EndValueWatchers(Turn& turn, Job& job, absl::Status status);
// OK, or why this daemon may not use the store of this generation.
absl::Status CheckStoreAccess(const State& state, const JobId& id, uint64_t generation, Incarnation incarnation);

// read_logs.cc: a new generation may lie on other hosts; a job that has ended has no more output to follow.
void MoveLogsOfJob(Turn& turn, const Job& job);
void EndLogsOfJob(Turn& turn, const Job& job);
void EndLogsAtHost(Turn& turn, const Host& host);
void CloseLogReader(Turn& turn, ReaderId id, absl::Status status);

// read_jobs.cc: the job as the API tells it.
v1::Job MakeJob(const Job& job, absl::Time now);

// prune_finished.cc: forgets the oldest finished jobs beyond the limit.
void PruneFinished(Turn& turn);

}  // namespace trainyard
