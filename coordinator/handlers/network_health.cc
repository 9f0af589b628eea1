#include "coordinator/handlers/network_health.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"
#include "coordinator/policy/network.h"

namespace trainyard {
namespace {

// A disk with fewer free bytes than kDiskFull counts as full until it has kDiskHasSpace. The thresholds differ, because
// processes on a full disk free a few bytes and use them again, which must not cause a series of notices.
constexpr uint64_t kDiskFull = 64 << 10;
constexpr uint64_t kDiskHasSpace = 256 << 10;

// Publishes an event of the cluster, and a notice of each job with ranks on the host.
void PublishForHost(Turn& turn, const Host& host, DecisionRule rule, NoticeLevel level, const std::string& text) {
  turn.DecideCluster(host.name, rule, level, text);
  for (const JobId& id : host.jobs) {
    Job& job = turn.state.jobs.at(id);
    if (HasTrainers(job.state())) turn.Decide(job, rule, level, text);
  }
}

void CheckArrival(Turn& turn, Host& host, absl::Duration clock_offset) {
  switch (host.arrivals.Add(turn.now, clock_offset)) {
    case ArrivalTrend::Change::kLate:
      return PublishForHost(
          turn, host, DecisionRule::kNetwork, NoticeLevel::kWarning,
          absl::StrCat("messages of host ", host.name.value(), " arrive at the coordinator ",
                       absl::FormatDuration(absl::Trunc(host.arrivals.late_by(), absl::Milliseconds(1))),
                       " late: the network is slow, or that host or the coordinator's host is very busy"));
    case ArrivalTrend::Change::kPunctual:
      return PublishForHost(turn, host, DecisionRule::kNetwork, NoticeLevel::kInfo,
                            absl::StrCat("messages of host ", host.name.value(), " arrive in time again"));
    case ArrivalTrend::Change::kNone:
      return;
  }
}

void CheckDisk(Turn& turn, Host& host) {
  const bool full = host.disk_free_bytes < (host.disk_full ? kDiskHasSpace : kDiskFull);
  if (full == host.disk_full) return;
  host.disk_full = full;
  if (!full)
    return PublishForHost(turn, host, DecisionRule::kDisk, NoticeLevel::kInfo,
                          absl::StrCat("the disk of host ", host.name.value(), " has space again"));
  PublishForHost(
      turn, host, DecisionRule::kDisk, NoticeLevel::kWarning,
      absl::StrCat("the disk of host ", host.name.value(), " that holds its daemon's state is full (",
                   host.disk_free_bytes, " bytes free): the daemon keeps its facts in memory until there is space"));
}

}  // namespace

void RecordHeartbeat(Turn& turn, Host& host, const Tick::Contact& contact) {
  if (contact.clock_offset.has_value()) {
    host.clock_offset = *contact.clock_offset;
    CheckArrival(turn, host, *contact.clock_offset);
  }
  if (contact.disk_free_bytes.has_value()) {
    host.disk_free_bytes = *contact.disk_free_bytes;
    CheckDisk(turn, host);
  }
}

void CheckNetwork(Turn& turn, Job& job) {
  if (job.state() != v1::JOB_STATE_RUNNING || job.current.nothing_desired || job.ranks_on.size() < 2) return;
  std::vector<WaitingRank> ranks;
  ranks.reserve(job.ranks.size());
  for (const Rank& rank : job.ranks) {
    if (!rank.ended()) ranks.push_back({.host = rank.record.host(), .trend = &rank.wait_trend});
  }
  if (job.current.network_slow) {
    if (!WaitsAsUsual(turn.now, ranks)) return;
    job.current.network_slow = false;
    return turn.Decide(job, DecisionRule::kNetwork, NoticeLevel::kInfo,
                       "the ranks wait for one another no longer than usual");
  }
  std::string text = FindSlowNetwork(turn.now, ranks);
  if (text.empty()) return;
  job.current.network_slow = true;
  turn.Decide(job, DecisionRule::kNetwork, NoticeLevel::kWarning, std::move(text));
}

}  // namespace trainyard
