// The exit codes of trainctl, which scripts rely on, and the conversion of statuses to them.
#pragma once

#include "absl/status/status.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

enum ExitCode {
  kExitDone = 0,
  kExitFailed = 1,
  kExitBadInput = 2,
  kExitUnreachable = 3,
  kExitCancelled = 130,  // as a shell tells a program that Ctrl-C ended
};

// Bad input is what the caller can fix by changing the call (InvalidArgument, NotFound, AlreadyExists,
// FailedPrecondition, OutOfRange, PermissionDenied, Unauthenticated); Unavailable and DeadlineExceeded are
// kExitUnreachable; all other errors are kExitFailed.
int ExitCodeOf(const absl::Status& status);

// The exit code of a job's final state.
int ExitCodeOf(v1::JobState state);

// Prints "trainctl: <message>" to standard error and returns the exit code.
int Fail(const absl::Status& status);

// "RUNNING" for JOB_STATE_RUNNING.
std::string StateName(v1::JobState state);
bool IsFinal(v1::JobState state);

}  // namespace trainyard::client
