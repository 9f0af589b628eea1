// The calls of JobService as functions: a deadline each, and tried again while the coordinator is going down or coming
// up.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// With a job_id in the request a retry submits nothing twice. Possible errors: as the RPC's.
absl::StatusOr<v1::SubmitResponse> SubmitJob(Connection& connection, const v1::SubmitRequest& request);
absl::StatusOr<v1::FindJobsResponse> FindJobs(Connection& connection, const v1::FindJobsRequest& request);
absl::StatusOr<v1::Job> GetJob(Connection& connection, const std::string& job_id);
// `save`: at a step, with a save before, and not at all where that fails.
absl::StatusOr<v1::Job> CancelJob(Connection& connection, const std::string& job_id, const std::string& reason,
                                  bool save = false);
absl::StatusOr<v1::Job> RestartJob(Connection& connection, const v1::RestartRequest& request);
absl::StatusOr<v1::Job> PauseJob(Connection& connection, const v1::PauseRequest& request);
absl::StatusOr<v1::Job> SaveJob(Connection& connection, const v1::SaveRequest& request);
absl::StatusOr<v1::Job> ResumeJob(Connection& connection, const v1::ResumeRequest& request);
// All pages, newest first, at most `max`.
absl::StatusOr<std::vector<v1::Job>> ListJobs(Connection& connection, const std::vector<v1::JobState>& states,
                                              size_t max);
absl::StatusOr<v1::ListHostsResponse> ListHosts(Connection& connection);
absl::StatusOr<v1::HostStatus> SetHost(Connection& connection, const v1::SetHostRequest& request);
// All pages of the answer, oldest event first.
absl::StatusOr<v1::ListEventsResponse> ListEvents(Connection& connection, v1::ListEventsRequest request);
absl::StatusOr<v1::ServerInfo> GetServerInfo(Connection& connection);
// The last lines of one rank's output, both streams in order.
std::vector<std::string> LastLogLines(Connection& connection, const std::string& job_id, uint32_t rank, uint32_t lines);

// "job k3x7q2ab (stdlib-gpt)". Pure.
std::string JobTitle(const v1::Job& job);

// The job's newest checkpoint that is known to have its name; null: there is none. Pure.
const v1::CheckpointInfo* NewestNamed(const v1::Job& job);

}  // namespace trainyard::client
