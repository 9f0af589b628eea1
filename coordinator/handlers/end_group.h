// How a generation's group ends: it failed, or an operator requested it. What follows once all ranks have ended is
// decided and recorded here; advance_job.cc carries it out.
#pragma once

#include <string>

#include "coordinator/core/turn.h"

namespace trainyard {

// However long a save takes, a requested stop ends with a kill after this time.
inline constexpr absl::Duration kStopGraceMax = absl::Minutes(10);

// The generation has failed: restart or give up, as policy/recovery decides. While the job is unconfirmed the failure
// is only recorded; DecideFailure follows once every host has attached or is lost.
void FailGeneration(Turn& turn, Job& job, const v1::FailureRecord& failure);
void DecideFailure(Turn& turn, Job& job);

// A rank has ended; also called for ends that no daemon could report.
void RankExited(Turn& turn, Job& job, Rank& rank, const v1::TrainerExited& exit);
// Durably counts the rank as ended although no exit was reported.
void MarkGone(Turn& turn, Job& job, Rank& rank, std::string why);

// Ends a group that has not failed: at a step and with a save, or immediately if `now`. Records what becomes of the job
// then. REQUIRES: the state is PLACED, STARTING, RUNNING or RECOVERING.
void EndGroup(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason, bool now);
// Changes what becomes of a job whose group EndGroup is already ending.
void ChangeEnding(Turn& turn, Job& job, v1::JobRecord::Ending ending, std::string reason);
// The save before the stop failed and the ranks continue: the job is not paused or restarted. REQUIRES: STOPPING.
void UndoStop(Turn& turn, Job& job, const std::string& why);

// Asks the trainers to stop at a step they agree on; they are killed after the grace.
void StopAtStep(Turn& turn, Job& job);
// How long a stop may take: it takes effect between two steps, after an evaluation or a save that is under way.
absl::Duration StopGrace(const Job& job);
absl::Duration MaxStopGrace(const Job& job);
// Removes the generation's trainers from the desired state, so that daemons kill what is left.
void DropTrainers(Turn& turn, Job& job);

}  // namespace trainyard
