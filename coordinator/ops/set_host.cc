// SetHost: an operator takes a host out of use, back into use, or says that it is gone.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

absl::Status UnknownHost(const State& state, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [known, host] : state.hosts) names.push_back(known.value());
  std::string nearest = NearestWord(name.substr(0, 253), names);
  return absl::NotFoundError(
      absl::StrCat("no host ", name.substr(0, 253),
                   nearest.empty() ? "; trainctl cluster lists them" : absl::StrCat("; did you mean ", nearest, "?")));
}

void Cordon(Turn& turn, Host& host, const std::string& reason) {
  host.record.set_cordoned(true);
  host.record.set_cordon_reason(CutText(reason, 1024));
  turn.Save(host);
}

// Jobs that have ranks there which have not ended.
std::vector<JobId> JobsOn(const State& state, const Host& host) {
  std::vector<JobId> jobs;
  for (const JobId& id : host.jobs) {
    const Job& job = state.jobs.at(id);
    auto on = job.ranks_on.find(host.name);
    if (!HasTrainers(job.state()) || job.held_at != 0 || on == job.ranks_on.end()) continue;
    if (std::any_of(on->second.begin(), on->second.end(), [&](uint32_t rank) { return !job.ranks[rank].ended(); })) {
      jobs.push_back(id);
    }
  }
  return jobs;
}

void Drain(Turn& turn, Host& host, const v1::SetHostRequest& request) {
  std::string text = WithReason(absl::StrCat("host ", host.name.value(), " is drained"), request.reason());
  std::vector<JobId> jobs = JobsOn(turn.state, host);
  turn.DecideCluster(host.name, "operator", "info", absl::StrCat(text, "; jobs with ranks there: ", jobs.size()));
  for (const JobId& id : jobs) {
    Job& job = turn.state.jobs.at(id);
    if (job.state() == v1::JOB_STATE_STOPPING) {
      if (request.now()) DropTrainers(turn, job);
      continue;  // it leaves the host anyway
    }
    // A failed group is on its way out, and is not placed on a cordoned host again.
    if (job.state() == v1::JOB_STATE_RECOVERING) continue;
    EndGroup(turn, job, v1::JobRecord::ENDING_RESTART, text, request.now());
  }
}

void Lose(Turn& turn, Host& host, const std::string& reason) {
  std::string text = WithReason(absl::StrCat("host ", host.name.value(), " is lost: the operator says so"), reason);
  turn.DecideCluster(host.name, "operator", "warning", text);
  for (const JobId& id : JobsOn(turn.state, host)) {
    Job& job = turn.state.jobs.at(id);
    LoseHost(turn, job, host.name, "operator", text);
  }
}

absl::Status Set(Turn& turn, const v1::SetHostRequest& request) {
  auto it = turn.state.hosts.find(HostName(request.name()));
  if (it == turn.state.hosts.end()) return UnknownHost(turn.state, request.name());
  Host& host = it->second;
  const std::string& name = host.name.value();
  switch (request.action()) {
    case v1::SetHostRequest::ACTION_CORDON:
      Cordon(turn, host, request.reason());
      turn.DecideCluster(host.name, "operator", "info",
                         WithReason(absl::StrCat("host ", name, " is cordoned"), request.reason()));
      break;
    case v1::SetHostRequest::ACTION_UNCORDON:
      host.record.set_cordoned(false);
      host.record.clear_cordon_reason();
      turn.Save(host);
      turn.DecideCluster(host.name, "operator", "info",
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
      return absl::InvalidArgumentError("action must be CORDON, UNCORDON, DRAIN or LOST");
  }
  turn.ScheduleAll();
  return absl::OkStatus();
}

}  // namespace

void Run(Turn& turn, SetHost& event) {
  if (absl::Status status = Set(turn, event.request); !status.ok()) {
    turn.Emit(Reply{event.call, std::move(status), {}});
    return;
  }
  const Host& host = turn.state.hosts.at(HostName(event.request.name()));
  turn.Emit(Reply{event.call, absl::OkStatus(), MakeHostStatus(turn, host)});
}

}  // namespace trainyard
