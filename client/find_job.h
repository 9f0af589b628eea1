// Finds the job that the user means: an id, a unique prefix of an id, or a unique name.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/commands.h"
#include "client/connection.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Returns the id of the job that `text` names; returns `text` itself if the coordinator knows no such job or does not
// support this call: the next call then reports the error. Possible errors: InvalidArgument: `text` names several jobs,
// which the message lists; those of FindJobs.
absl::StatusOr<std::string> FindJob(Connection& connection, const std::string& text);

// As FindJob, but uses an answer that was received before. Pure.
absl::StatusOr<std::string> ChooseJob(const std::string& text, const v1::FindJobsResponse& found);

// Returns whether `name` may name a job rather than a folder: it is not a path, and no file here has this name.
bool MayBeJob(const std::string& name);

// Returns the folder `name`, or the run folder of the job `name` if a coordinator is configured and knows the job.
// Possible errors: those of FindJob and GetJob; NotFound: the job's run folder is not on this machine.
absl::StatusOr<std::string> RunFolderOf(const Globals& globals, const std::string& name);

}  // namespace trainyard::client
