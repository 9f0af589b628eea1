// Trainers that the store does not know, because the store was restored from an older copy: those of later generations
// of its jobs, and those of jobs that it does not have. They are left alone, since ending them would lose steps that
// were already reported. The functions below decide what follows once they have ended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

// Holds the job, because a host runs a generation that the store does not know. A group that was started under the same
// number is ended.
void HoldJob(Turn& turn, Host& host, Job& job, const v1::RunningTrainer& running);
// Resumes the job once no trainer of the later generation runs any more.
void ResumeHeld(Turn& turn, Job& job);
// Ends the trainers of the later generation after all, because an operator requested it.
void ReleaseHeld(Turn& turn, Job& job);

// Whether the trainer's job is neither recorded nor removed from the history: the store is older than the job.
bool IsUnknown(const State& state, const v1::TrainerKey& key);
// Leaves the trainer alone, because its job is not recorded at all, and publishes that.
void HoldUnknown(Turn& turn, Host& host, const v1::TrainerKey& key);
// Removes the unknown jobs that have ended, and publishes that.
void ForgetEndedUnknown(Turn& turn);
// Returns the hosts that run this job, which is not recorded; empty: none does.
std::vector<std::string> HostsWithUnknown(const State& state, const JobId& id);
// Ends an unknown job, because an operator requested it, and returns its state; none: no host runs it.
std::optional<v1::Job> CancelUnknown(Turn& turn, const JobId& id, const std::string& reason);

}  // namespace trainyard
