#include "coordinator/handlers/host_health.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/policy/health.h"

namespace trainyard {
namespace {

void PublishUnreachable(Turn& turn, const Host& host, const std::string& reason) {
  std::string text = absl::StrCat("host ", host.name.value(), " is unreachable: ", reason);
  turn.DecideCluster(host.name, DecisionRule::kNone, NoticeLevel::kWarning,
                     absl::StrCat(text, "; its trainers may still run"));
  std::vector<JobId> jobs(host.jobs.begin(), host.jobs.end());
  for (const JobId& id : jobs) {
    Job& job = turn.state.jobs.at(id);
    if (!HasTrainers(job.state())) continue;
    if (job.forming()) turn.Notice(job, NoticeLevel::kWarning, text + "; the forming group waits for it");
    if (job.state() == v1::JOB_STATE_RUNNING)
      turn.Notice(job, NoticeLevel::kWarning, text + "; its ranks may still run");
  }
  turn.ScheduleAll();
}

}  // namespace

void RecordContact(Turn& turn, Host& host, absl::Time time) {
  ObserveGap(time - host.last_contact, turn.state.options.lease, host.gaps);
  host.lease = AdaptiveLease(turn.state.options.lease, host.gaps);
  host.last_contact = std::max(host.last_contact, time);
}

absl::Duration LeaseFor(const State& state, const Host& host) { return std::max(host.lease, state.options.lease); }

bool IsReachable(const State& state, const HostName& name) {
  auto host = state.hosts.find(name);
  return host != state.hosts.end() && host->second.reachable;
}

void UpdateReachability(Turn& turn) {
  for (auto& [name, host] : turn.state.hosts) {
    HostContact contact = CheckContact(
        turn.now,
        {.attached = host.attached(), .last_contact = host.last_contact, .lease = LeaseFor(turn.state, host)});
    if (contact.reachable == host.reachable) continue;
    host.reachable = contact.reachable;
    if (!contact.reachable) {
      PublishUnreachable(turn, host, contact.reason);
    } else {
      turn.DecideCluster(name, DecisionRule::kNone, NoticeLevel::kInfo,
                         absl::StrCat("host ", name.value(), " is reachable again"));
      for (const JobId& id : host.jobs) RestartStallTimer(turn, turn.state.jobs.at(id));
      turn.ScheduleAll();
    }
  }
}

}  // namespace trainyard
