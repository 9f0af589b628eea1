#include "client/exit_code.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/output.h"

namespace trainyard::client {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kClientDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:  // another token must be given
      return kClientBadInput;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kClientUnreachable;
    case absl::StatusCode::kCancelled:
      return kClientCancelled;
    default:
      return kClientFailed;
  }
}

int ExitCodeOf(v1::JobState state) {
  if (state == v1::JOB_STATE_SUCCEEDED) return kClientDone;
  return state == v1::JOB_STATE_CANCELLED ? kClientCancelled : kClientFailed;
}

int Fail(const absl::Status& status) {
  Say(status.message());
  return ExitCodeOf(status);
}

std::string StateName(v1::JobState state) {
  return std::string(absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

bool IsFinal(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

}  // namespace trainyard::client
