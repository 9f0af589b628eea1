// Ends the group of a generation, because it failed or an operator requested it. What follows once all ranks have ended
// is decided and recorded here; advance_job.cc carries it out.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// MaxStopGrace is at least this long.
inline constexpr absl::Duration kBusyStopGraceMin = absl::Minutes(10);

// Records that the generation has failed, and restarts the job or gives it up (DecideFailure), as policy/recovery
// decides. While hosts of the job are unconfirmed, that decision waits until each has attached or is lost.
void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure);
void DecideFailure(Turn& turn, Job& job);

// Records the exit of a rank, and fails the generation if the exit is a failure. Also called with CAUSE_LOST, when a
// daemon no longer knows the rank.
void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit);
// Durably counts a rank without an exit as ended, because its host is lost, it never started, or it cannot be killed.
// Does not fail the generation.
void MarkGone(Turn& turn, Job& job, Rank& rank, std::string why);

// Ends a group on purpose: after a step and a save, or immediately if `now` or if the group makes no steps. Records
// what happens to the job afterwards. REQUIRES: the state is PLACED, STARTING, RUNNING or RECOVERING.
void EndGroup(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason, bool now,
              DecisionRule rule = DecisionRule::kOperator);
// Changes what happens to a job after its group, which EndGroup is already ending, has ended.
void ChangeEnding(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason);
// Cancels the requested end of the group, because the save before it failed, or was not made in time, and the ranks
// continue. REQUIRES: STOPPING.
void UndoStop(Turn& turn, Job& job, const std::string& why);

// Returns the number of the next request to stop or to save in this generation; `last`: the newest recorded one. Ranks
// ignore a number that they have received before. For a generation that was loaded from the store, which may be an
// older copy that does not know all numbers used, the number is at least the wall clock's time in milliseconds, which
// is larger than any number used before.
uint64_t NextRequest(const Turn& turn, const Job& job, uint64_t last);

// Asks the trainers to stop at a step that they agree on. They are killed after StopGrace, or after MaxStopGrace if
// they still evaluate or save. Unless the job is cancelled, they are not killed while they try its last save again. A
// stop for a cancellation with a save is undone instead of killing them (UndoStop). The ranks of a command make no such
// step: they leave the desired state at once (DropTrainers).
void StopAtStep(Turn& turn, Job& job);
// Whether a job whose group ends with `ending` starts again later.
bool ContinuesLater(v1::JobRecord::Ending ending);
// Whether the job's ranks are being ended and its final state is already decided.
bool IsEndDecided(const Job& job);
// Whether the job is being cancelled with a save, and its ranks have not stopped yet.
bool IsCancelAwaitingSave(const Job& job);
// Returns the time that a stop may take. A stop takes effect between two steps.
absl::Duration StopGrace(const Job& job);
// Returns the time that a stop may take while ranks still evaluate or save.
absl::Duration MaxStopGrace(const Job& job);
// Removes the generation's trainers from the desired state, so that daemons kill those that still run.
void DropTrainers(Turn& turn, Job& job);

}  // namespace trainyard
