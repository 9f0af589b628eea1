// The calls of JobService as functions. Each has a deadline. Except for LastLogLines, each is tried up to four times
// while the coordinator is unavailable, for example because it stops or starts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/connection.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// The length of the random ids that keep a retried Restart or Save from taking effect twice.
inline constexpr int kRequestIdLength = 16;

// A request with a job_id is submitted only once even if retried. Possible errors: those of the RPC.
absl::StatusOr<v1::SubmitResponse> SubmitJob(Connection& connection, const v1::SubmitRequest& request);
absl::StatusOr<v1::FindJobsResponse> FindJobs(Connection& connection, const v1::FindJobsRequest& request);
absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& job_id);
absl::StatusOr<v1::Job> CancelJob(Connection& connection, const v1::CancelRequest& request);
absl::StatusOr<v1::Job> CancelJob(Connection& connection, const std::string& job_id, const std::string& reason);
// A request with a request_id takes effect only once even if retried, unless the coordinator is older than this field;
// the same applies to SaveJob.
absl::StatusOr<v1::Job> RestartJob(Connection& connection, const v1::RestartRequest& request);
absl::StatusOr<v1::Job> PauseJob(Connection& connection, const v1::PauseRequest& request);
absl::StatusOr<v1::Job> SaveJob(Connection& connection, const v1::SaveRequest& request);
absl::StatusOr<v1::Job> SetJobPriority(Connection& connection, const v1::SetPriorityRequest& request);
absl::StatusOr<v1::Job> ResumeJob(Connection& connection, const v1::ResumeRequest& request);
// Reads all pages, newest job first, at most `max` jobs, of one namespace or (if empty) of all.
absl::StatusOr<std::vector<v1::Job>> ListJobs(Connection& connection, const std::vector<v1::JobState>& states,
                                              size_t max, const std::string& namespace_name = "");
// Reads all pages, at most `limit` jobs; 0: all.
absl::StatusOr<v1::GetQueueResponse> GetQueue(Connection& connection, const std::string& namespace_name,
                                              uint32_t limit);
// Reads all pages.
absl::StatusOr<v1::ListHostsResponse> ListHosts(Connection& connection);
absl::StatusOr<v1::HostStatus> SetHost(Connection& connection, const v1::SetHostRequest& request);
// Reads all pages, oldest event first.
absl::StatusOr<v1::ListEventsResponse> ListEvents(Connection& connection, v1::ListEventsRequest request);
absl::StatusOr<v1::ServerInfo> GetServerInfo(Connection& connection);
// The last lines of one rank's output in the newest generation, both streams interleaved.
std::vector<std::string> LastLogLines(Connection& connection, const v1::Job& job, uint32_t rank, uint32_t lines);

// The error of a Submit that failed. If no coordinator answered, one may have received the request; then the message
// names the job's id and ends with `advice`. Pure.
absl::Status SubmitError(const absl::Status& status, absl::string_view job_id, absl::string_view advice);

// "job k3x7q2ab (stdlib-gpt)". Pure.
std::string JobTitle(const v1::Job& job);

// Whether the coordinator has left out the spec except for the name and the number of ranks, because the token is that
// of viewers: a complete spec trains, runs a command or probes hosts. Pure.
bool HasHiddenSpec(const v1::Job& job);

// The number of ranks: "4"; of a command with min_ranks "2 of 4", or "2 to 4" before it runs. Pure.
std::string RanksText(const v1::Job& job);

// The job's newest confirmed checkpoint (its folder is known to have its final name); null if there is none. Pure.
const v1::CheckpointInfo* NewestConfirmed(const v1::Job& job);

}  // namespace trainyard::client
