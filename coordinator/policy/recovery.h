// What a rank's end means for its job: whether it is a failure, of which cause, and whether the group is started again.
// Pure; called by the core with each fact that ends a rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/exit_codes.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {

v1::FailureRecord MakeFailure(v1::FailureRecord::Kind kind, std::string text);
// "rank 1 on w1 <what>".
v1::FailureRecord MakeRankFailure(v1::FailureRecord::Kind kind, uint32_t rank, absl::string_view host,
                                  absl::string_view what);

// "exit code 1", "killed by signal 9 (SIGKILL)".
std::string TellExit(const v1::TrainerExited& exit);

struct EndedRank {
  uint32_t rank = 0;
  absl::string_view host;
  bool told_finished = false;    // it said that all its steps are made, or that it stopped as asked
  bool stopped_unasked = false;  // it stopped between two steps although nobody here asked for it
  bool was_desired = true;       // false: it was being ended anyway
  const v1::TrainerExited* exit = nullptr;
};

// None: the rank ended well, or as it was told to.
std::optional<v1::FailureRecord> JudgeExit(const EndedRank& ended);

// Whether `found` explains the failure better than `known`: a refusal above all, then the first cause of its own; what
// the peers of a failed rank report is no cause of its own.
bool IsBetterCause(const v1::FailureRecord& found, const v1::FailureRecord& known);
bool HasOwnCause(v1::FailureRecord::Kind kind);
// Whether restarting after such a failure takes one of the job's restarts. That a host lacks the checkpoint, or has no
// room for now (its disk is full, its state folder is gone), is nothing that the job could have done better.
bool IsPaidByTheJob(v1::FailureRecord::Kind kind);
// Starting again is no use, wherever: the job cannot work as it is written, or it has made all steps and given up
// saving the last one.
bool IsForGood(v1::FailureRecord::Kind kind);
// "signal": a label of metrics and reports.
absl::string_view FailureKindName(v1::FailureRecord::Kind kind);

// A host that could not run a job is left out of its placement for so long, doubling with each time up to the most.
inline constexpr absl::Duration kAvoidLeast = absl::Minutes(1);
inline constexpr absl::Duration kAvoidMost = absl::Minutes(10);

struct RecoveryFacts {
  const v1::FailureRecord* failure = nullptr;
  uint32_t restarts = 0;  // already made
  uint32_t max_restarts = 0;
  std::optional<uint64_t> checkpoint_step;  // newest recorded
  uint32_t failures_without_progress = 0;   // in a row, before this one
  bool elsewhere = false;                   // the job could be placed without the host of the failed rank
};

struct RecoveryDecision {
  bool restart = false;
  absl::Duration delay;  // before the group is started again
  std::string reason;    // "...; restarting from step 100 (restart 1 of 10)"
};

// Restart, or give up with the cause. What only one host cannot do is done elsewhere: a start that fails there for good
// where the job fits without it, and a checkpoint that is missing there in any case, which is not counted. The first
// failure restarts at once; those that follow without a step gained wait 250 ms, doubling up to 10 s, so that a job
// that cannot start does not burn its host.
RecoveryDecision DecideRecovery(const RecoveryFacts& facts);

}  // namespace trainyard
