#include "coordinator/core/core.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"
#include "coordinator/policy/placement.h"

namespace trainyard {
namespace {

struct Namer {
  const char* operator()(const SubmitJob&) const { return "submit_job"; }
  const char* operator()(const GetJob&) const { return "get_job"; }
  const char* operator()(const ListJobs&) const { return "list_jobs"; }
  const char* operator()(const CancelJob&) const { return "cancel_job"; }
  const char* operator()(const GetServerInfo&) const { return "get_server_info"; }
  const char* operator()(const WatchJob&) const { return "watch_job"; }
  const char* operator()(const WatchClosed&) const { return "watch_closed"; }
  const char* operator()(const OpenLogs&) const { return "open_logs"; }
  const char* operator()(const LogsClosed&) const { return "logs_closed"; }
  const char* operator()(const LogPushEnded&) const { return "log_push_ended"; }
  const char* operator()(const AttachHost&) const { return "attach_host"; }
  const char* operator()(const DetachHost&) const { return "detach_host"; }
  const char* operator()(const HostFactsTold&) const { return "host_facts"; }
  const char* operator()(const RankReportsTold&) const { return "rank_reports"; }
  const char* operator()(const RevisionApplied&) const { return "revision_applied"; }
  const char* operator()(const PutValue&) const { return "put_value"; }
  const char* operator()(const WatchValues&) const { return "watch_values"; }
  const char* operator()(const WatchValuesClosed&) const { return "watch_values_closed"; }
  const char* operator()(const Tick&) const { return "tick"; }
};

}  // namespace

const char* NameOf(const Event& event) { return std::visit(Namer(), event); }

absl::StatusOr<std::unique_ptr<Core>> Core::New(CoreOptions options,
                                                const std::vector<std::pair<std::string, std::string>>& records,
                                                absl::Time now) {
  auto core = std::unique_ptr<Core>(new Core);
  core->state_.options = std::move(options);
  core->state_.started_at = now;
  RETURN_IF_ERROR(LoadState(records, now, core->state_));
  return core;
}

Output Core::Start(absl::Time now) {
  Turn turn(state_, now);
  for (auto& [id, job] : state_.jobs) {
    if (!IsFinal(job.state())) {
      // Watchers that come back find the state as it is now; what was told before is not told again.
      turn.SetReason(job, std::string(job.head().reason()));
      turn.Touch(job);
      continue;
    }
    // Nothing can happen to it any more, so its last event can be made anew at each start.
    v1::Event event;
    event.set_sequence(++job.last_sequence);
    event.set_time_unix_ms(job.head().finished_unix_ms());
    event.set_generation(job.head().generation());
    event.mutable_state()->set_state(job.state());
    event.mutable_state()->set_reason(job.head().reason());
    event.mutable_state()->set_restarts(job.head().restarts());
    job.history.push_back(std::make_shared<const v1::Event>(std::move(event)));
  }
  if (!state_.jobs.empty()) {
    turn.Info(absl::StrCat("took up ", state_.jobs.size(), " jobs, ", state_.active.size(),
                           " of them with trainers that may be running; waiting for their hosts to attach"));
  }
  return turn.Finish();
}

Output Core::Handle(Event event, absl::Time now) {
  Turn turn(state_, now);
  std::visit([&turn](auto& what) { Run(turn, what); }, event);
  return turn.Finish();
}

Totals Core::CountTotals() const {
  Totals totals;
  for (int state = v1::JobState_MIN + 1; state <= v1::JobState_MAX; ++state) {
    if (v1::JobState_IsValid(state)) totals.jobs[static_cast<v1::JobState>(state)] = 0;
  }
  for (const auto& [id, job] : state_.jobs) totals.jobs[job.state()]++;
  for (const auto& [name, host] : state_.hosts) {
    totals.hosts_attached += host.attached() ? 1 : 0;
    totals.hosts_unreachable += host.reachable ? 0 : 1;
  }
  for (const HostSlots& host : FreeSlots(state_)) {
    totals.slots += host.slots;
    totals.slots_free += host.free;
  }
  return totals;
}

}  // namespace trainyard
