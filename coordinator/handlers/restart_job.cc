// RestartJob: the group is ended at a step and with a save, and formed anew.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strict_yaml.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

absl::Status Restart(Turn& turn, Job& job, const v1::RestartRequest& request) {
  if (job.held_at != 0)
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), ": ", job.head().reason()));
  switch (job.state()) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
      EndGroup(turn, job, v1::JobRecord::ENDING_RESTART, WithReason("restart asked", request.reason()), request.now());
      if (request.now()) LoseUnreachable(turn, job, "the operator asked for a restart without waiting for it");
      return absl::OkStatus();
    case v1::JOB_STATE_RECOVERING:
      StopAvoidingAll(turn, job);
      if (request.now()) LoseUnreachable(turn, job, "the operator asked for a restart without waiting for it");
      return absl::OkStatus();  // it is being started again already
    case v1::JOB_STATE_STOPPING:
      if (job.record.ending() != v1::JobRecord::ENDING_RESTART) break;
      if (request.now()) {
        DropTrainers(turn, job);
        LoseUnreachable(turn, job, "the operator asked for a restart without waiting for it");
      }
      return absl::OkStatus();
    default:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat("job ", job.id.value(), " is ", StateName(job.state()), " (",
                                                    job.head().reason(), "): it has no group to restart",
                                                    job.state() == v1::JOB_STATE_PAUSED ? "; resume it" : ""));
}

}  // namespace

std::string WithReason(absl::string_view what, const std::string& reason) {
  return reason.empty() ? std::string(what) : absl::StrCat(what, ": ", CutText(reason, 1024));
}

absl::Status NoSuchJob(const State& state, const std::string& job_id) {
  if (std::vector<std::string> hosts = HostsOfUnknown(state, JobId(job_id)); !hosts.empty()) {
    return absl::NotFoundError(absl::StrCat("job ", job_id, " runs on ", absl::StrJoin(hosts, ", "),
                                            ", but this coordinator's store, restored from an older copy, does not "
                                            "know it; wait for its end, or end it with `trainctl cancel ",
                                            job_id, "`"));
  }
  std::vector<std::string> ids;
  for (const auto& [id, job] : state.jobs) {
    if (job.head().spec().name() == job_id) {
      return absl::NotFoundError(
          absl::StrCat("no job ", job_id.substr(0, 64), "; job ", id.value(), " has that name: call it by its id"));
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

void Run(Turn& turn, RestartJob& event) {
  AnswerForJob(turn, event.call, event.request.job_id(), [&](Job& job) { return Restart(turn, job, event.request); });
}

}  // namespace trainyard
