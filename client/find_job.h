// Which job a person means: an id, the beginning of one that no other job's has, or a name that only one job has.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/commands.h"
#include "client/connection.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// The id of the job that `text` names; `text` itself where the coordinator knows no such job, or does not answer this
// question: the call that follows says what is wrong with it. Possible errors: InvalidArgument: `text` names several,
// which the message lists; else as FindJobs.
absl::StatusOr<std::string> FindJob(Connection& connection, const std::string& text);

// The same of an answer. Pure.
absl::StatusOr<std::string> ChooseJob(const std::string& text, const v1::FindJobsResponse& found);

// Whether `name` may be that of a job rather than of a folder: nothing of that name is here, and it is no path.
bool MayBeJob(const std::string& name);

// The folder that `name` is, or the run folder of the job that it names, where a coordinator is configured and knows
// one. Possible errors: those of FindJob and GetJob; NotFound: the job's run folder is not on this machine.
absl::StatusOr<std::string> RunFolderOf(const Globals& globals, const std::string& name);

}  // namespace trainyard::client
