#include "coordinator/core/core.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "coordinator/core/records.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/account_goodput.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/handlers/webhooks.h"

namespace trainyard {
namespace {

// Returns the job's last published state; null if a version without events wrote the store.
const v1::StateChange* LastState(const Job& job) {
  for (auto event = job.history.durable().rbegin(); event != job.history.durable().rend(); ++event) {
    if ((*event)->has_state()) return &(*event)->state();
  }
  return nullptr;
}

// Adopts a job of the store: watchers that reconnect receive all its published events and its current state.
void AdoptJob(Turn& turn, Job& job) {
  // Sequence numbers continue at the Unix time in milliseconds. If the store was replaced by an older copy, the numbers
  // of the lost events are therefore not used again, and a client does not mistake new events for those.
  if (!IsFinal(job.state())) {
    job.last_sequence =
        std::max(job.last_sequence, static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixMillis(turn.wall))));
  }
  turn.ReserveSequences(job);
  const v1::StateChange* last = LastState(job);
  if (last == nullptr || last->state() != job.state()) {
    v1::Event event;
    event.mutable_state()->set_state(job.state());
    event.mutable_state()->set_reason(job.head().reason());
    event.mutable_state()->set_restarts(job.head().restarts());
    turn.Publish(job, std::move(event));
  }
  if (job.current.unconfirmed.empty()) return;
  std::vector<std::string> hosts;
  for (const HostName& host : job.current.unconfirmed) {
    if (hosts.size() == 8) {
      hosts.push_back("...");
      break;
    }
    hosts.push_back(host.value());
  }
  turn.Decide(job, DecisionRule::kAdoption, NoticeLevel::kInfo,
              absl::StrCat("a new coordinator adopted the job; the coordinator waits for ", absl::StrJoin(hosts, ", "),
                           " to attach and decides nothing until then"));
}

// Publishes that the coordinator was away, as an event of the cluster, and for each job with trainers if the absence
// was at least as long as a lease.
void PublishAbsence(Turn& turn, absl::Duration away, bool held_up) {
  std::string duration = absl::FormatDuration(absl::Trunc(away, absl::Milliseconds(100)));
  std::string text = held_up ? absl::StrCat("the coordinator was held up for ", duration,
                                            " by a store that accepted no records (was its disk full?)")
                             : absl::StrCat("the coordinator was away for ", duration, " (stopped or suspended)");
  absl::StrAppend(&text, "; no host counts as unreachable because of it");
  turn.DecideCluster(HostName(), DecisionRule::kNone, NoticeLevel::kWarning, text);
  if (away < turn.state.options.lease) return;
  for (auto& [id, job] : turn.state.jobs) {
    if (HasTrainers(job.state())) turn.Notice(job, NoticeLevel::kWarning, text);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Core>> Core::New(CoreOptions options,
                                                const std::vector<std::pair<std::string, std::string>>& records,
                                                absl::Time now) {
  auto core = std::unique_ptr<Core>(new Core);
  core->state_.options = std::move(options);
  core->state_.started_at = now;
  RETURN_IF_ERROR(LoadState(records, now, core->state_));
  return core;
}

Output Core::Start(CoreTime time) {
  Turn turn(state_, time);
  for (std::string& key : state_.orphans) turn.Delete(std::move(key));
  state_.orphans.clear();
  turn.DecideCluster(HostName(), state_.jobs.empty() ? DecisionRule::kNone : DecisionRule::kAdoption,
                     NoticeLevel::kInfo,
                     absl::StrCat("coordinator ", kVersion, " started with ", Plural(state_.jobs.size(), "job"), ", ",
                                  state_.active.size(), " of them with trainers that may be running"));
  for (auto& [id, job] : state_.jobs) {
    AdoptJob(turn, job);
    if (!IsFinal(job.state())) turn.Touch(job);
    ResumeWebhook(turn, job);
  }
  if (!state_.jobs.empty()) {
    turn.Info(absl::StrCat("adopted ", Plural(state_.jobs.size(), "job"), ", ", state_.active.size(),
                           " of them with trainers that may be running; waiting for their hosts to attach"));
  }
  return turn.Finish();
}

Output Core::Handle(Event event, CoreTime time) {
  Turn turn(state_, time);
  if (absl::Duration away = time.steady - time.now; away > state_.away) {
    PublishAbsence(turn, away - state_.away, time.held_up);
    state_.away = away;
  }
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

std::vector<std::pair<JobId, v1::GoodputRecord>> Core::CountGoodput(absl::Time steady) const {
  std::vector<std::pair<JobId, v1::GoodputRecord>> ledgers;
  for (const auto& [id, job] : state_.jobs) {
    if (!IsFinal(job.state())) ledgers.emplace_back(id, AccountedTo(job, steady));
  }
  return ledgers;
}

}  // namespace trainyard
