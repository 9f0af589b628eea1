// Planted bugs, by which the simulation itself is tested: each perverts what goes into a core or comes out of one, and
// must be found by the invariant that is there for it.
#pragma once

namespace trainyard::sim {

enum class Mutation {
  kNone,
  kDropRecord,         // the store says "durable" and forgets a job's record
  kReleaseEarly,       // effects are released before their records are synced
  kForgeReports,       // a report of another generation counts
  kForgeExit,          // an exit is told that never was
  kTakeStale,          // a message of an old stream is taken as one of the current stream
  kStartTwice,         // a daemon starts a rank of its own accord a second time
  kRepeatStep,         // a watcher is told a step twice
  kDropStep,           // a watcher is not told a step
  kKillOnLostContact,  // a daemon ends its trainers when it loses the coordinator
  kLoseDesired,        // one host never hears what it should do
  kEmptyReason,        // a state change carries no reason
  kLoseAcks,           // no daemon hears what it may forget
  kForgetQueued,       // a job falls out of the queue
  kPruneEarly,         // rank 0 removes checkpoints before newer ones are recorded
  kClaimSlots,         // a host says it has more slots than it has
  kCancelUnasked,      // a job is cancelled though nobody asked
  kGiveUpSilent,       // a host is given up as soon as it is not heard of
  kForgeWork,          // a rank's computing is told as twice what it was
  kEmptyNotice,        // a decision says nothing
  kAdoptNothing,       // who takes a run folder removes every save that has no name yet
  kAdoptIncomplete,    // a save counts as complete without its manifest
  kForgeReady,         // what another generation wrote is told to be ready
  kGrantTwice,         // a refusal is told as a grant
  kLeavePartials,      // who takes a run folder leaves there what it does not use
  kIgnoreFailedWrite,  // a part that could not be written counts as written
  kIgnoreLock,         // a run folder is taken though another job trains into it
  kUseOthers,          // a job that was to begin anew goes on from what another one left
  kClaimSaved,         // rank 0 says that the last step is saved, and it is not
  kLast = kClaimSaved,
};

// "drop-record"
const char* NameOf(Mutation mutation);
// The invariants of which one must be broken by it, separated by a space.
const char* CaughtBy(Mutation mutation);

}  // namespace trainyard::sim
