// What each event does: one function an event, in a file of its name. All run on the core's thread, change the state
// through the turn, and answer by effects; an error is an answer to its caller, never a failure of the core.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "coordinator/core/event.h"
#include "coordinator/core/state.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// ---- people and services -------------------------------------------------------------------------------------------
void Run(Turn& turn, SubmitJob& event);      // submit_job.cc
void Run(Turn& turn, GetJob& event);         // read_jobs.cc
void Run(Turn& turn, ListJobs& event);       // read_jobs.cc
void Run(Turn& turn, FindJobs& event);       // find_jobs.cc
void Run(Turn& turn, GetServerInfo& event);  // read_jobs.cc
void Run(Turn& turn, ListHosts& event);      // list_hosts.cc
void Run(Turn& turn, ListEvents& event);     // list_events.cc
void Run(Turn& turn, CancelJob& event);      // cancel_job.cc
void Run(Turn& turn, RestartJob& event);     // restart_job.cc
void Run(Turn& turn, PauseJob& event);       // pause_job.cc
void Run(Turn& turn, SaveJob& event);        // save_job.cc
void Run(Turn& turn, ResumeJob& event);      // resume_job.cc
void Run(Turn& turn, SetHost& event);        // set_host.cc
void Run(Turn& turn, WatchJob& event);       // watch_job.cc
void Run(Turn& turn, WatchClosed& event);    // watch_job.cc
void Run(Turn& turn, OpenLogs& event);       // read_logs.cc
void Run(Turn& turn, LogsClosed& event);     // read_logs.cc
void Run(Turn& turn, LogPushEnded& event);   // read_logs.cc

// ---- daemons -------------------------------------------------------------------------------------------------------
void Run(Turn& turn, AttachHost& event);           // host_attached.cc
void Run(Turn& turn, DetachHost& event);           // host_detached.cc
void Run(Turn& turn, HostFactsReceived& event);    // host_facts.cc
void Run(Turn& turn, RankReportsReceived& event);  // rank_reports.cc
void Run(Turn& turn, RevisionApplied& event);      // revision_applied.cc
void Run(Turn& turn, HostDraining& event);         // host_beats.cc
void Run(Turn& turn, HostTrouble& event);          // host_beats.cc
void Run(Turn& turn, HostValuesReceived& event);   // put_values.cc

// ---- time ----------------------------------------------------------------------------------------------------------
void Run(Turn& turn, Tick& event);  // tick_health.cc

// ---- parts that several of the above share -------------------------------------------------------------------------

// advance_job.cc: moves a job along as far as what is known of its ranks allows.
void AdvanceJob(Turn& turn, Job& job);
// Whether each rank of the generation has told its exit, or is known to be gone without one.
bool AllEnded(const Job& job);
struct RecoveryFacts;
RecoveryFacts FactsForRecovery(const Turn& turn, const Job& job);

// end_group.cc
// The generation has failed: restart or give up, by policy/recovery. While the job is unconfirmed the failure is only
// recorded; DecideFailure follows once every host has attached or is lost.
void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure);
void DecideFailure(Turn& turn, Job& job);
// The group is to end although nothing has failed, at a step and with a save unless `now`; what becomes of the job then
// is recorded. REQUIRES: the state is PLACED, STARTING, RUNNING or RECOVERING.
void EndGroup(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason, bool now);
// For a group that is being ended already, by EndGroup: something else becomes of it.
void ChangeEnding(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason);
// The trainers are asked to stop at a step they agree on, and killed after the grace.
void StopAtStep(Turn& turn, Job& job);
// However long a save goes on, a stop that was asked for ends with a kill.
inline constexpr absl::Duration kStopGraceMost = absl::Minutes(10);
absl::Duration StopGraceMost(const Job& job);

// The ranks went on, as the save before their stop failed: the job was not paused or restarted. REQUIRES: STOPPING.
void UndoStop(Turn& turn, Job& job, const std::string& why);

// What a stop is given: it takes effect between two steps, and an evaluation or a save may be in between.
absl::Duration StopGrace(const Job& job);
// Nothing of the generation is desired any more: daemons kill what is left.
void DropTrainers(Turn& turn, Job& job);
// The rank counts as ended although no exit was told, durably.
void MarkGone(Turn& turn, Job& job, Rank& rank, std::string why);

// hold_jobs.cc: what runs and this coordinator's store, which is older, does not know.
// A host runs a later generation of the job than is recorded: the job is held as it is.
void HoldJob(Turn& turn, Host& host, Job& job, const v1::RunningTrainer& running);
// Once nothing of that generation runs any more, the job goes on.
void SettleHeld(Turn& turn, Job& job);
// What runs of it is ended after all, as an operator asked.
void ReleaseHeld(Turn& turn, Job& job);
// The same of a job that is not recorded at all.
void HoldUnknown(Turn& turn, Host& host, const v1::TrainerKey& key);
// Tells which of them have ended.
void SettleUnknown(Turn& turn);
// The hosts that run this job, which is not known; empty: none does.
std::vector<std::string> HostsOfUnknown(const State& state, const JobId& id);
// Ends it, as an operator asked, and says how it stands; none: no host runs it.
std::optional<v1::Job> CancelUnknown(Turn& turn, const JobId& id, const std::string& reason);

// judge_hosts.cc
// The host's lease: the configured one, or longer where its messages come unevenly.
absl::Duration LeaseOf(const State& state, const Host& host);
// Marks hosts that became unreachable, or reachable again.
void JudgeHosts(Turn& turn);
// Which unreachable hosts of the job are lost, by policy/host_loss.
void JudgeLosses(Turn& turn, Job& job);
// The host's ranks count as ended, and the group with them.
void LoseHost(Turn& turn, Job& job, const HostName& name, const char* rule, const std::string& reason);
// The same of every host of the job that cannot be reached, because an operator said so.
void LoseUnreachable(Turn& turn, Job& job, const std::string& why);

// account_goodput.cc: everything up to now goes to what the ranks spend their time with now. Called before that
// changes.
void AccountGoodput(const Turn& turn, Job& job);
// The ledger as it would be then; nothing is changed.
v1::GoodputRecord AccountedTo(const Job& job, absl::Time steady);

// restart_job.cc: "paused: by night"; "paused" where no reason was given.
std::string WithReason(absl::string_view what, const std::string& reason);
// NotFound, naming the job that may be meant.
absl::Status NoSuchJob(const State& state, const std::string& job_id);
// Answers with the job as `act` has left it, or with the error of `act`; NotFound where there is no such job.
void AnswerForJob(Turn& turn, CallId call, const std::string& job_id, absl::FunctionRef<absl::Status(Job&)> act);

// avoid_hosts.cc: hosts that could not run a job, though it may run elsewhere (JobRecord.avoided).
// The failed rank's host is left out of the job's placement for a time, if that was the cause.
void AvoidFailedHost(Turn& turn, Job& job);
// The job ran there, an operator asked, or a new daemon has attached: it is worth another try.
void StopAvoiding(Turn& turn, Job& job, const HostName& host);
void StopAvoidingAll(Turn& turn, Job& job);
// The job is placed again once the time of one of them has run out.
void ScheduleWhereAvoidanceEnds(Turn& turn, Job& job);
// Why each of them is left out now; those that are a last resort only where `with_last_resorts`.
std::map<std::string, std::string> AvoidedNow(absl::Time now, const Job& job, bool with_last_resorts);

// look_elsewhere.cc: whether a job none of whose hosts can be reached may be started elsewhere. Asks hosts about its
// checkpoint; false as long as too few of them are known to have it.
bool MayAbandon(Turn& turn, Job& job);
// Nobody need look any more: a host of the job can be reached, or it was given up.
void StopLooking(Turn& turn, Job& job);
void NotePaths(Turn& turn, const HostName& host, const v1::RankReports& reports);

// place_jobs.cc: places those of the waiting jobs (by submit index) that fit, oldest first.
void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes);
// Free slots of every host that is attached and reachable, in name order, and why some of them are not to be used.
struct HostSlots;
std::vector<HostSlots> FreeSlots(const State& state);
// What takes up slots of a host, also of one that cannot be reached.
struct UsedSlots {
  uint64_t count = 0;
  std::string busy_with;  // "job ab12, job cd34"
};
UsedSlots UsedSlotsOf(const State& state, const Host& host);
// Whether the job fits on hosts that can be reached now, were every slot there free, without these and those that
// are avoided.
bool CouldRunWithout(absl::Time now, const State& state, const Job& job, const std::vector<std::string>& hosts);

// trainer_facts.cc and checkpoint_facts.cc: one fact of a trainer of the current generation.
void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);
void ApplyCheckpointFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact);
// Rank 0 is ready, and has told nothing that it went on from since.
void BeganAnew(Turn& turn, Job& job);
// A granted checkpoint as one that is recorded.
v1::CheckpointInfo MakeInfo(const v1::CheckpointGrant& word);
// end_group.cc: a rank has ended; also for ends that nobody could tell.
void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit);

// last_save.cc: the save of the job's last step failed, and the ranks of this generation try it again.
bool LastSaveIsRetried(const Job& job);
void TellLastSaveFailed(Turn& turn, Job& job, const Rank& rank, const v1::CheckpointFailed& failed);
void TellLastSaveMade(Turn& turn, Job& job);
// Whether the job's history has this notice, of its present generation.
bool WasTold(const Job& job, absl::string_view rule, absl::string_view text);

// host_facts.cc: the end of a rank 0 is acknowledged once its newest reports are here, or too late.
void ReleaseHeldAck(Turn& turn, Host& host, const Job& job);
void ReleaseHeldAcks(Turn& turn);

// rank_reports.cc: one notice of step reports that were dropped for the many that a span brings, once it is over.
void TellDroppedReports(Turn& turn, Job& job);

// judge_network.cc: what a host's heartbeats told since the tick before, of its way to us and of its disk; and whether
// the ranks of a job wait for a network.
void TakeBeat(Turn& turn, Host& host, const Tick::Contact& heard);
void JudgeNetworkOf(Turn& turn, Job& job);

// list_hosts.cc: the host as the API tells it.
v1::HostStatus MakeHostStatus(const Turn& turn, const Host& host);

// note_stand.cc: what ranks report of where they stand.
void RecordPosition(Turn& turn, Job& job, Rank& rank, const v1::RankReport& report);
// What is known of this phase; made where nothing is.
v1::PhaseRecord& PhaseRecordOf(Job& job, const std::string& phase);
// judge_stragglers.cc: who is slow.
void JudgeStragglersOf(Turn& turn, Job& job);
// judge_hang.cc: what follows when they stand still.
void NoteExamination(Turn& turn, Job& job, Rank& rank, const v1::Examination& examination);
// Whether the stack of a rank that hung is on its way: its group is not killed before it has come, or kStackWait
// passed.
bool AwaitsStacks(const Job& job);
void JudgeHangs(Turn& turn);
// No stall of this job began before now.
void RestartStallTimer(Turn& turn, Job& job);
// For how long a rank may be in this phase; infinite where nothing is known of it yet.
absl::Duration LearnedPhaseLimit(const Job& job, absl::string_view phase);

// host_decisions.cc: what an `auto` came to on one host.
void NoteHostDecisions(Turn& turn, Job& job, const HostName& host, const v1::HostDecisions& told);

// put_values.cc: a store that is sealed, or whose generation is over, is told to nobody any more; a host that has just
// attached is told all there is.
void CloseStore(Job& job);
void SendStoredValues(Turn& turn, const Host& host);

// read_logs.cc: a new generation may lie on other hosts; a job that has ended has no more output to follow.
void MoveLogsOfJob(Turn& turn, const Job& job);
void EndLogsOfJob(Turn& turn, const Job& job);
void EndLogsAtHost(Turn& turn, const Host& host);
void CloseLogReader(Turn& turn, ReaderId id, absl::Status status);

// read_jobs.cc: the job as the API tells it.
v1::Job MakeJob(const Turn& turn, const Job& job);

// prune_finished.cc: forgets the oldest finished jobs beyond the limit.
void PruneFinished(Turn& turn);
// What a host still runs of this job is a leftover from now on.
void RememberForgotten(Turn& turn, const JobId& id);

}  // namespace trainyard
