// SetHost: an operator disables or enables a host for new ranks, gives it up as lost, or removes it.
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/nearest_name.h"
#include "coordinator/core/history.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/answer_for_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/host_status.h"
#include "coordinator/handlers/lose_hosts.h"

namespace trainyard {
namespace {

absl::Status UnknownHost(const State& state, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, host] : state.hosts) names.push_back(known.value());
  std::string nearest = NearestName(name.substr(0, 253), names);
  absl::Status status = absl::NotFoundError(
      absl::StrCat("no host ", name.substr(0, 253),
                   nearest.empty() ? "; trainctl cluster lists all" : absl::StrCat("; did you mean ", nearest, "?")));
  return AddResource(AddReason(std::move(status), reasons::kHostNotFound), "host", name);
}

absl::Status AboutHost(absl::Status status, const Host& host) {
  if (status.ok()) return status;
  status = AddMetadata(std::move(status), "host", host.name.value());
  return AddMetadata(std::move(status), "resource_version", absl::StrCat(host.version()));
}

void Cordon(Turn& turn, Host& host, const std::string& reason) {
  host.record.set_cordoned(true);
  host.record.set_cordon_reason(CutText(reason, 1024));
  turn.Save(host);
}

// Returns the jobs of which at least one rank on the host has not ended.
std::vector<JobId> JobsOn(const State& state, const Host& host) {
  std::vector<JobId> jobs;
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    if (HasTrainers(job.state()) && job.held_at == 0 && job.HasRanksLeftOn(host.name)) jobs.push_back(id);
  }
  return jobs;
}

void Drain(Turn& turn, Host& host, const v1::SetHostRequest& request) {
  std::string text = WithReason(absl::StrCat("host ", host.name.value(), " is drained"), request.reason());
  std::vector<JobId> jobs = JobsOn(turn.state, host);
  turn.DecideCluster(host.name, DecisionRule::kOperator, NoticeLevel::kInfo,
                     absl::StrCat(text, "; jobs with ranks there: ", jobs.size()));
  for (const JobId& id : jobs) {
    Job& job = turn.state.jobs.at(id);
    // An immediate drain ends the ranks before they save, and the job must not be cancelled without its save.
    if (request.now() && IsCancelAwaitingSave(job)) UndoStop(turn, job, text);
    // A group that is being ended leaves the host anyway, and is not placed on a cordoned host again.
    const bool ending = job.state() == v1::JOB_STATE_STOPPING || job.state() == v1::JOB_STATE_RECOVERING;
    if (!ending) EndGroup(turn, job, v1::JobRecord::ENDING_RESTART, text, request.now());
    if (ending && request.now()) DropTrainers(turn, job);
    if (request.now()) LoseUnreachable(turn, job, "the operator requested an immediate drain");
  }
}

void Lose(Turn& turn, Host& host, const std::string& reason) {
  std::string text = WithReason(absl::StrCat("host ", host.name.value(), " is lost: the operator reported it"), reason);
  turn.DecideCluster(host.name, DecisionRule::kOperator, NoticeLevel::kWarning, text);
  for (const JobId& id : JobsOn(turn.state, host)) {
    Job& job = turn.state.jobs.at(id);
    LoseHost(turn, job, host.name, DecisionRule::kOperator, text);
  }
}

absl::Status CheckForgettable(const State& state, const Host& host) {
  std::vector<std::string> problems;
  if (host.attached()) {
    problems.push_back(absl::StrCat("its daemon is attached from ", host.peer, " (stop it there first)"));
  } else if (host.reachable) {
    problems.push_back("its lease has not expired (wait until it has)");
  }
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    std::vector<std::string> ranks;
    for (uint32_t rank : job.ranks_on.at(host.name)) {
      if (!job.ranks[rank].ended()) ranks.push_back(absl::StrCat(rank));
    }
    if (ranks.empty()) continue;
    if (ranks.size() > 8) ranks.resize(8), ranks.push_back("...");
    problems.push_back(absl::StrCat("job ", id.value(), " has rank ", absl::StrJoin(ranks, ", "),
                                    " there (drain the host; with --lost if it will not come back)"));
  }
  if (problems.empty()) return absl::OkStatus();
  return AddReason(absl::FailedPreconditionError(absl::StrCat("host ", host.name.value(),
                                                              " cannot be forgotten: ", absl::StrJoin(problems, "; "))),
                   reasons::kHostInUse);
}

// Removes the host; only the records of its jobs and the events still name it.
void Forget(Turn& turn, const Host& host, const std::string& reason) {
  const HostName name = host.name;
  turn.DecideCluster(name, DecisionRule::kOperator, NoticeLevel::kInfo,
                     WithReason(absl::StrCat("host ", name.value(), " is forgotten"), reason));
  for (auto& [id, job] : turn.state.jobs) {
    StopAvoiding(turn, job, name);
    job.current.unconfirmed.erase(name);
  }
  turn.state.incarnations.erase(host.incarnation());
  turn.Delete(HostKey(name));
  turn.state.hosts.erase(name);
  // The coordinator does not wait any more for the trainers of held or unknown jobs on this host.
  for (auto& [id, job] : turn.state.jobs) ResumeHeld(turn, job);
  ForgetEndedUnknown(turn);
}

absl::Status Set(Turn& turn, Host& host, const v1::SetHostRequest& request) {
  const std::string& name = host.name.value();
  switch (request.action()) {
    case v1::SetHostRequest::ACTION_CORDON:
      Cordon(turn, host, request.reason());
      turn.DecideCluster(host.name, DecisionRule::kOperator, NoticeLevel::kInfo,
                         WithReason(absl::StrCat("host ", name, " is cordoned"), request.reason()));
      break;
    case v1::SetHostRequest::ACTION_UNCORDON:
      host.record.set_cordoned(false);
      host.record.clear_cordon_reason();
      turn.Save(host);
      turn.DecideCluster(host.name, DecisionRule::kOperator, NoticeLevel::kInfo,
                         WithReason(absl::StrCat("host ", name, " is in use again"), request.reason()));
      break;
    case v1::SetHostRequest::ACTION_DRAIN:
      Cordon(turn, host, WithReason("drained", request.reason()));
      Drain(turn, host, request);
      break;
    case v1::SetHostRequest::ACTION_LOST:
      Cordon(turn, host, WithReason("lost", request.reason()));
      Lose(turn, host, request.reason());
      break;
    default:
      return InvalidFieldError("action", "action must be CORDON, UNCORDON, DRAIN, LOST or FORGET");
  }
  turn.ScheduleAll();
  return absl::OkStatus();
}

// Records who has requested what, as an event of the cluster.
void RecordAction(Turn& turn, const SetHost& event) {
  if (event.by.empty()) return;
  absl::string_view action = v1::SetHostRequest::Action_Name(event.request.action());
  absl::ConsumePrefix(&action, "ACTION_");
  turn.DecideCluster(
      HostName(event.request.name()), DecisionRule::kOperator, NoticeLevel::kInfo,
      absl::StrCat(absl::AsciiStrToLower(action), " of host ", event.request.name(), " requested by ", event.by));
}

}  // namespace

void Run(Turn& turn, SetHost& event) {
  const v1::SetHostRequest& request = event.request;
  auto it = turn.state.hosts.find(HostName(request.name()));
  if (it == turn.state.hosts.end()) {
    return turn.Emit(Reply{event.call, UnknownHost(turn.state, request.name()), {}});
  }
  Host& host = it->second;
  const bool forget = request.action() == v1::SetHostRequest::ACTION_FORGET;
  absl::Status status =
      CheckVersion(absl::StrCat("host ", host.name.value()), host.version(), request.expected_version());
  if (status.ok()) status = forget ? CheckForgettable(turn.state, host) : Set(turn, host, request);
  if (!status.ok()) return turn.Emit(Reply{event.call, AboutHost(std::move(status), host), {}});
  RecordAction(turn, event);
  // The answer to a removal is the last status of the host.
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeHostStatus(turn, host)});
  if (forget) Forget(turn, host, request.reason());
}

}  // namespace trainyard
