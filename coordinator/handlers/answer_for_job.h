// Answers to the calls that act on one job.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"

namespace trainyard {

// Answers `call` with the state of the job after `act`, or with an error: NotFound if there is no such job; Aborted if
// `expected_version` is neither 0 nor its version; or the error of `act`.
void AnswerForJob(Turn& turn, CallId call, const std::string& job_id, uint64_t expected_version,
                  absl::FunctionRef<absl::Status(Job&)> act);
// The same for a request with a `job_id` and an `expected_version`.
template <typename Request>
void AnswerForJob(Turn& turn, CallId call, const Request& request, absl::FunctionRef<absl::Status(Job&)> act) {
  AnswerForJob(turn, call, request.job_id(), request.expected_version(), act);
}

// The same for a request with a `request_id`, whose caller may repeat it because the answer was lost. `what`: what the
// request asks for ("save"). If the job has carried out such a request with this id, the answer is the state of the
// job, whatever `expected_version` is, and `act` is not called. An empty id names no request.
void AnswerOnceForJob(Turn& turn, CallId call, const std::string& job_id, uint64_t expected_version,
                      absl::string_view what, const std::string& request_id, absl::FunctionRef<absl::Status(Job&)> act);
template <typename Request>
void AnswerOnceForJob(Turn& turn, CallId call, absl::string_view what, const Request& request,
                      absl::FunctionRef<absl::Status(Job&)> act) {
  AnswerOnceForJob(turn, call, request.job_id(), request.expected_version(), what, request.request_id(), act);
}

// Returns Aborted if `expected` is neither 0 nor `version`. `version`: of `what` ("job k3x7q2ab").
absl::Status CheckVersion(absl::string_view what, uint64_t version, uint64_t expected);

// Adds what is known of the job to an error about it: id, state, generation and version.
absl::Status AboutJob(absl::Status status, const Job& job);

// Returns `status`. If it is OK, records who has requested the action, as a notice of the job: "pause requested by the
// operator at 127.0.0.1:5012 with trainctl/0.1.0". Records nothing if `by` is empty.
absl::Status Recorded(Turn& turn, Job& job, absl::string_view what, const std::string& by, absl::Status status);

// Returns NotFound; the message names a job that the caller may have meant.
absl::Status NoSuchJob(const State& state, const std::string& job_id);

// Returns "paused: for the night", or "paused" if `reason` is empty.
std::string WithReason(absl::string_view what, const std::string& reason);

}  // namespace trainyard
