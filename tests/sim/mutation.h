// Planted bugs that test the simulation itself: each corrupts a model, or the input or output of a core, and a run with
// it must break one of the invariants that CaughtBy lists.
#pragma once

namespace trainyard::sim {

enum class Mutation {
  kNone,
  kDropRecord,         // the store loses a job's record that it has reported as durable
  kReleaseEarly,       // effects are released before their records are synced
  kForgeReports,       // a report of another generation is published as one of the current generation
  kForgeExit,          // an exit that never happened is reported
  kTakeStale,          // a message of an old stream is handled as one of the current stream
  kStartTwice,         // a daemon starts a rank a second time without an order
  kRepeatStep,         // a watcher gets a step twice
  kDropStep,           // a watcher does not get a step
  kKillOnLostContact,  // a daemon ends its trainers when it loses the coordinator
  kLoseDesired,        // one host never receives its desired state
  kEmptyReason,        // a state change has no reason
  kLoseAcks,           // no daemon receives acknowledgements
  kForgetQueued,       // a job is lost from the queue
  kPruneEarly,         // rank 0 removes checkpoints before newer ones are recorded
  kClaimSlots,         // a host reports more slots than it has
  kCancelUnasked,      // a job is cancelled without a request
  kGiveUpSilent,       // a host is given up as soon as its contact is lost
  kForgeWork,          // a rank reports twice its computing time
  kEmptyNotice,        // a decision has no text
  kAdoptNothing,       // the claimant of a run folder removes every save without a name
  kAdoptIncomplete,    // a save counts as complete without its manifest
  kForgeReady,         // the save of another generation is reported as ready
  kGrantTwice,     // rank 0 requests a second grant for a step, for other content, and the refusal is sent as a grant
  kLeavePartials,  // the claimant of a run folder does not remove unused saves
  kIgnoreFailedWrite,  // a part that could not be written counts as written
  kIgnoreLock,         // a run folder is claimed although another job trains in it
  kUseOthers,          // a job that must start from scratch resumes from another job's checkpoint
  kClaimSaved,         // rank 0 reports that the last step is saved although it is not
  kForgeStopped,       // a rank that is not stopped is reported as stopped
  kIgnoreHangs,        // a hang is reported, but does not end the generation
  kForgetTensor,       // a job is placed as if it had no tensor groups
  kForgetMinRanks,     // an elastic job is placed as if it worked with any number of ranks
  kGrowAtOnce,         // an elastic job gets more ranks without waiting
  kNeverGrow,          // an elastic job never gets more ranks
  kIgnoreQuotas,       // the coordinator has no quotas
  kPreemptEqual,       // jobs are preempted for jobs of the same priority
  kOvertakeAll,        // a waiting job is overtaken for ever
  kPreemptNone,        // no job is preempted although the configuration permits it
  kResumePaused,       // a paused job is resumed without a request
  kLast = kResumePaused,
};

// "drop-record"
const char* NameOf(Mutation mutation);
// The names of the invariants, separated by spaces; the bug must break one of them.
const char* CaughtBy(Mutation mutation);

}  // namespace trainyard::sim
