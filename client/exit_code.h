// Converts statuses and job states to the exit codes of trainctl.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/exit_codes.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Bad input is what the caller can fix by changing the call (InvalidArgument, NotFound, AlreadyExists,
// FailedPrecondition, OutOfRange, PermissionDenied, Unauthenticated). Unavailable and DeadlineExceeded are
// kClientUnreachable, Cancelled is kClientCancelled, and all other errors are kClientFailed.
int ExitCodeOf(const absl::Status& status);

// The exit code of a job's final state.
int ExitCodeOf(v1::JobState state);

// Prints "trainctl: <message>" to standard error and returns the exit code.
int Fail(const absl::Status& status);

// "RUNNING" for JOB_STATE_RUNNING.
std::string StateName(v1::JobState state);
bool IsFinal(v1::JobState state);

}  // namespace trainyard::client
