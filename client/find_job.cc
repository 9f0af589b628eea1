#include "client/find_job.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kNameBytes = 200;

}  // namespace

absl::StatusOr<std::string> ChooseJob(const std::string& text, const v1::FindJobsResponse& found) {
  if (found.jobs().empty()) return text;
  if (found.total() <= 1) return found.jobs(0).job_id();
  return absl::InvalidArgumentError(
      absl::StrCat("'", Printable(text, kNameBytes), "' matches ", found.total(), " jobs; give more of the id:\n",
                   absl::StrJoin(found.jobs(), "\n",
                                 [](std::string* out, const v1::FoundJob& job) {
                                   absl::StrAppend(out, "  ", job.job_id(), "  ", StateName(job.state()), "  ",
                                                   Printable(job.name(), kNameBytes));
                                 }),
                   AndMore(static_cast<size_t>(found.jobs_size()), found.total(), "\n  ")));
}

absl::StatusOr<std::string> FindJob(Connection& connection, const std::string& text) {
  v1::FindJobsRequest request;
  request.set_text(text);
  auto found = FindJobs(connection, request);
  // An older coordinator accepts only complete ids.
  if (found.status().code() == absl::StatusCode::kUnimplemented || text.empty()) return text;
  RETURN_IF_ERROR(found.status());
  return ChooseJob(text, *found);
}

bool MayBeJob(const std::string& name) {
  return !name.empty() && !absl::StrContains(name, '/') && name != "." && name != ".." &&
         !FileExists(AbsolutePath(name, WorkingDirectory()));
}

absl::StatusOr<std::string> RunFolderOf(const Globals& globals, const std::string& name) {
  if (globals.coordinator.empty() || !MayBeJob(name)) return name;
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, name));
  auto job = GetJob(*connection, id);
  if (absl::IsNotFound(job.status())) {
    return absl::NotFoundError(absl::StrCat(name, " is not a folder here, and ", job.status().message()));
  }
  RETURN_IF_ERROR(job.status());
  const std::string& folder = job->spec().checkpoint().dir();
  if (!folder.empty() && FileExists(folder)) return folder;
  if (HasHiddenSpec(*job)) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator does not show the run folder of ",
                                                      JobTitle(*job),
                                                      ", for example because the token is that of viewers: name the "
                                                      "folder"));
  }
  return absl::NotFoundError(absl::StrCat("the run folder of ", JobTitle(*job), ", ", folder,
                                          ", is not on this machine: run this command on a machine that has it"));
}

}  // namespace trainyard::client
