#include "coordinator/handlers/answer_for_job.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/nearest_name.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/job_status.h"

namespace trainyard {

std::string WithReason(absl::string_view what, const std::string& reason) {
  return reason.empty() ? std::string(what) : absl::StrCat(what, ": ", CutText(reason, 1024));
}

absl::Status NoSuchJob(const State& state, const std::string& job_id) {
  if (std::vector<std::string> hosts = HostsWithUnknown(state, JobId(job_id)); !hosts.empty()) {
    return absl::NotFoundError(absl::StrCat("job ", job_id, " runs on ", absl::StrJoin(hosts, ", "),
                                            ", but this coordinator's store, restored from an older copy, does not "
                                            "know it; wait for its end, or end it with `trainctl cancel ",
                                            job_id, "`"));
  }
  std::vector<std::string> ids;
  for (const auto& [id, job] : state.jobs) {
    if (job.head().spec().name() == job_id) {
      return absl::NotFoundError(
          absl::StrCat("no job ", job_id.substr(0, 64), "; job ", id.value(), " has that name: give its id instead"));
    }
    ids.push_back(id.value());
  }
  std::string nearest = NearestName(job_id.substr(0, 64), ids);
  return absl::NotFoundError(absl::StrCat("no job ", job_id.substr(0, 64),
                                          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

void AnswerForJob(Turn& turn, CallId call, const std::string& job_id, absl::FunctionRef<absl::Status(Job&)> act) {
  auto it = turn.state.jobs.find(JobId(job_id));
  if (it == turn.state.jobs.end()) {
    turn.Emit(Reply{call, NoSuchJob(turn.state, job_id), {}});
    return;
  }
  absl::Status status = act(it->second);
  if (status.ok()) {
    turn.Emit(Reply{call, absl::OkStatus(), MakeJob(turn, it->second)});
  } else {
    turn.Emit(Reply{call, std::move(status), {}});
  }
}

}  // namespace trainyard
