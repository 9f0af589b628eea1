// Decides whether the end of a rank is a failure of its job, which of several failures explains most, and whether the
// group is restarted after a failure, also after a hang or the loss of a host. Pure.
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
std::string DescribeExit(const v1::TrainerExited& exit);

struct EndedRank {
  uint32_t rank = 0;
  absl::string_view host;
  bool reported_finished = false;    // it reported that all its steps are made, or that it stopped as requested
  bool stopped_unrequested = false;  // it stopped between two steps although the coordinator had not requested it
  bool was_desired = true;           // false: it was being ended, or was killed after every rank had made all steps
  bool is_command = false;           // the program of a job with `command`, whose exit codes have no meaning except 0
  const v1::TrainerExited* exit = nullptr;
};

// nullopt: the rank ended successfully, or as requested.
std::optional<v1::FailureRecord> ClassifyExit(const EndedRank& ended);

// Returns the last line that a trainer printed, if it exited with an error; otherwise an empty string.
std::string ErrorOf(const v1::TrainerExited& exit);
// Whether two errors are the same, apart from numbers such as process ids and sizes. An empty error is not known, and
// is never the same.
bool IsSameError(absl::string_view a, absl::string_view b);

// Whether `found` explains the failure better than `known`: a permanent failure explains most, then the first failure
// with a cause of its own. Reports of a failed rank's peers are not a cause of their own.
bool IsBetterCause(const v1::FailureRecord& found, const v1::FailureRecord& known);
bool HasOwnCause(v1::FailureRecord::Kind kind);
// Whether a restart after a failure of this kind counts against recovery.max_restarts. It does not if a host lacks the
// checkpoint, has no space now (its disk is full, its state folder is missing) or was refused by command.check, or if
// the store did not know the newest generation: the job cannot prevent that.
bool CountsAsRestart(v1::FailureRecord::Kind kind);
// Whether a restart cannot help on any host: the job cannot work as specified, its time limit has passed, or it has
// made all steps and has given up saving the last one.
bool IsPermanent(v1::FailureRecord::Kind kind);
// Returns the name of the kind in metrics and reports, such as "signal".
absl::string_view FailureKindName(v1::FailureRecord::Kind kind);

// A host that could not run a job is excluded from the job's placement for this long, doubled each time up to the
// maximum.
inline constexpr absl::Duration kMinAvoidTime = absl::Minutes(1);
inline constexpr absl::Duration kMaxAvoidTime = absl::Minutes(10);

// A job that has not made a step yet is given up after this many failures in a row with the same error. The pauses
// between the attempts add up to 3.75 s if the job is new (0, 0.25, 0.5, 1 and 2 s). In this time, the memory of an
// earlier job that has just ended becomes free.
inline constexpr uint32_t kSameErrorsMax = 6;

struct RecoveryFacts {
  const v1::FailureRecord* failure = nullptr;
  uint32_t restarts = 0;  // restarts so far
  uint32_t max_restarts = 0;
  std::optional<uint64_t> checkpoint_step;  // from which the next group resumes; none: from the beginning
  uint32_t failures_without_progress = 0;   // in a row, before this failure
  bool fits_elsewhere = false;              // the job could be placed without the host of the failed rank
  // In a row before this failure, with the same error. 0 if the job has made a step.
  uint32_t same_errors = 0;
};

struct RecoveryDecision {
  bool restart = false;
  absl::Duration delay;  // before the group is restarted
  std::string reason;    // "...; restarting from step 100 (restart 1 of 10)"
};

// Decides to restart, or to give up with the cause as the reason. If a trainer cannot be started on a host, the job is
// restarted on other hosts, provided that it fits there. If a host lacks the checkpoint, the job is restarted on other
// hosts in any case, and the restart is not counted. The first failure restarts immediately; later ones without
// progress in between wait 250 ms, doubled up to 10 s, so that a job that cannot start does not overload its host. A
// job that has made no step fails after kSameErrorsMax failures with the same error: more restarts would not help.
RecoveryDecision DecideRecovery(const RecoveryFacts& facts);

}  // namespace trainyard
