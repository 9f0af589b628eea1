// Answers to the calls that act on one job.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Answers `call` with the state of the job after `act`, or with the error of `act`; NotFound if there is no such job.
void AnswerForJob(Turn& turn, CallId call, const std::string& job_id, absl::FunctionRef<absl::Status(Job&)> act);

// Returns NotFound; the message names a job that the caller may have meant.
absl::Status NoSuchJob(const State& state, const std::string& job_id);

// Returns "paused: for the night", or "paused" if `reason` is empty.
std::string WithReason(absl::string_view what, const std::string& reason);

}  // namespace trainyard
