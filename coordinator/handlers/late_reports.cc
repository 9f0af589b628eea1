#include "coordinator/handlers/late_reports.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/turn.h"

namespace trainyard {
namespace {

// The longest time for which the acknowledgement of the fact that rank 0 has finished is delayed while rank 0 still
// runs. If a daemon is killed, the newest reports, which it held in memory, are lost, but this fact is in the daemon's
// outbox on disk, and the next daemon sends it immediately. The reports arrive later: rank 0, which waits for the
// acknowledgement, sends its newest steps again once it has connected to the next daemon.
constexpr absl::Duration kReportsLimit = absl::Seconds(30);

}  // namespace

bool ReportsAreMissing(const Job& job) {
  if (job.ranks.empty() || IsFinal(job.state())) return false;
  const v1::RankRecord& first = job.ranks.front().record;
  return first.finished() && first.first_step() <= first.finished_step() && job.reported_step < first.finished_step();
}

void StoreLastReports(Turn& turn, Host& host, Job& job, const v1::Fact& fact) {
  turn.StoreReports(job);
  if (!ReportsAreMissing(job)) return;
  const absl::Time until = turn.now + (fact.has_exited() ? kReportsGrace : kReportsLimit);
  DelayedAck& delayed =
      host.delayed_acks.try_emplace(job.id, DelayedAck{.fact = fact.sequence(), .until = until}).first->second;
  delayed.until = std::min(delayed.until, until);
}

void Acknowledge(Turn& turn, Host& host) {
  uint64_t acked = host.applied_fact;
  for (const auto& [job, delayed] : host.delayed_acks) acked = std::min(acked, delayed.fact - 1);
  if (acked > host.record.acked_fact()) {
    host.record.set_acked_fact(acked);
    turn.Save(host);
  }
  SendToHost ack{host.session, {}};
  ack.message.mutable_ack()->set_sequence(host.record.acked_fact());
  turn.Emit(std::move(ack));
}

void ReleaseDelayedAck(Turn& turn, Host& host, const Job& job) {
  auto delayed = host.delayed_acks.find(job.id);
  if (delayed == host.delayed_acks.end() || (ReportsAreMissing(job) && turn.now < delayed->second.until)) return;
  host.delayed_acks.erase(delayed);
  if (host.attached()) Acknowledge(turn, host);
}

void ReleaseDelayedAcks(Turn& turn) {
  for (auto& [name, host] : turn.state.hosts) {
    if (host.delayed_acks.empty()) continue;
    size_t before = host.delayed_acks.size();
    std::erase_if(host.delayed_acks, [&](const auto& delayed) { return turn.now >= delayed.second.until; });
    if (host.delayed_acks.size() < before && host.attached()) Acknowledge(turn, host);
  }
}

}  // namespace trainyard
