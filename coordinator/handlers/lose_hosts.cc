#include "coordinator/handlers/lose_hosts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/abandon_job.h"
#include "coordinator/handlers/end_group.h"
#include "coordinator/handlers/hangs.h"
#include "coordinator/handlers/host_health.h"
#include "coordinator/handlers/strays.h"
#include "coordinator/policy/host_loss.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

PeerRank MakePeer(const Turn& turn, const Job& job, const Rank& rank, const Host& host) {
  PeerRank peer;
  peer.reports = rank.last_report > host.attached_at && turn.now - rank.last_report <= LeaseFor(turn.state, host);
  peer.report_age = turn.now - rank.last_report;
  peer.suspect = job.current.hang.suspects.contains(rank.record.rank());
  for (const v1::CommunicatorReport& communicator : rank.position.communicators) {
    if (peer.waits_in.empty()) peer.waits_in = communicator.waits_in();
  }
  peer.unchanged = turn.now - rank.position.progress_at;
  // The phase `train` has no limit here: the time since the last completed step is limited instead. A phase without a
  // learned duration proves nothing.
  peer.phase_time = turn.now - rank.last_report + absl::Seconds(rank.position.phase_s);
  peer.phase_limit = rank.phase == Phase::kTrain ? absl::ZeroDuration() : LearnedPhaseLimit(job, rank.phase);
  return peer;
}

// Gathers the facts that are the same for every host of the job.
HostLossFacts MakeFacts(const Turn& turn, const Job& job, std::vector<PeerRank>& peers, std::string& broken) {
  HostLossFacts facts;
  facts.forming = job.forming();
  facts.ending = job.current.nothing_desired;
  facts.is_command = job.head().spec().has_command();
  facts.learned_step = absl::Seconds(job.head().learned_step_s());
  facts.abandon_after = absl::Seconds(job.head().spec().recovery().abandon_after_s());
  if (job.current.unreachable_since != absl::InfiniteFuture())
    facts.none_reachable_for = turn.now - job.current.unreachable_since;
  absl::Time progress = job.current.progress_at;
  for (const Rank& rank : job.ranks) {
    if (!IsReachable(turn.state, rank.host())) continue;
    const Host& host = turn.state.hosts.at(rank.host());
    ++facts.ranks_on_reachable_hosts;
    if (rank.reported_broken && broken.empty()) {
      broken = absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(), " reports a broken collective");
    }
    if (!facts.forming) progress = std::max({progress, rank.step_at, host.attached_at});
    if (!rank.ended()) peers.push_back(MakePeer(turn, job, rank, host));
  }
  // The failure of a rank explains more than the report of a peer.
  if (job.record.has_failure()) broken = job.record.failure().text();
  facts.since_progress = turn.now - progress;
  facts.peers = peers;
  facts.broken = broken;
  return facts;
}

// Whether the host's ranks are known to have received `go`: a rank of the group has made a step, which needs all ranks,
// or each rank of the host has reported a later phase.
bool HasReceivedGo(const Job& job, const HostName& name) {
  bool stepped = std::any_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) {
    return rank.last_step >= std::max<uint64_t>(1, rank.record.first_step());
  });
  if (stepped) return true;
  const std::vector<uint32_t>& ranks = job.ranks_on.at(name);
  return std::all_of(ranks.begin(), ranks.end(), [&](uint32_t index) {
    const ReportedPhase& phase = job.ranks[index].phase;
    return phase != Phase::kStarting && phase != Phase::kJoining && phase != Phase::kTokenize &&
           phase != Phase::kLoad && phase != Phase::kReady;
  });
}

// The hosts with ranks that have not ended: the unreachable ones, and the number of reachable ones.
struct Reach {
  std::vector<HostName> unreachable;
  size_t reachable = 0;
};

Reach FindReach(const State& state, const Job& job) {
  Reach reach;
  for (const auto& [name, ranks] : job.ranks_on) {
    bool has_live_rank =
        std::any_of(ranks.begin(), ranks.end(), [&](uint32_t rank) { return !job.ranks[rank].ended(); });
    if (!has_live_rank) continue;
    if (IsReachable(state, name)) {
      ++reach.reachable;
    } else {
      reach.unreachable.push_back(name);
    }
  }
  return reach;
}

// Marks the job as unreachable if none of its hosts can be reached, and publishes changes.
void UpdateUnreachable(Turn& turn, Job& job, const Reach& reach) {
  bool unreachable = !reach.unreachable.empty() && reach.reachable == 0;
  if (unreachable == job.head().unreachable()) {
    if (unreachable && job.current.unreachable_since == absl::InfiniteFuture())
      job.current.unreachable_since = turn.now;
    return;
  }
  job.head().set_unreachable(unreachable);
  job.current.unreachable_since = unreachable ? turn.now : absl::InfiniteFuture();
  if (!unreachable) EndPathQueries(turn, job);
  turn.Save(job);
  turn.Notice(job, unreachable ? NoticeLevel::kWarning : NoticeLevel::kInfo,
              unreachable
                  ? absl::StrCat("no host with a rank that still runs can be reached; the job is left alone for ",
                                 job.head().spec().recovery().abandon_after_s(), " s (recovery.abandon_after_s), then ",
                                 IsEndDecided(job) ? "ended without waiting for its hosts" : "restarted on other hosts")
                  : std::string("a host of the job can be reached again"));
}

// Counts the host's ranks of the job as gone, so nothing waits any more for the host to attach. A trainer that may
// still run there becomes a stray, which uses its slot until its exit is reported. The coordinator must remember the
// stray itself: if the host's stream survives the loss, no new Hello lists the trainers that run, and a desired state
// in transit may still start a trainer.
void LoseRanks(Turn& turn, Job& job, const HostName& name, const std::string& reason) {
  job.current.unconfirmed.erase(name);
  const auto known = turn.state.hosts.find(name);
  const auto ranks = job.ranks_on.find(name);
  if (known == turn.state.hosts.end() || ranks == job.ranks_on.end()) return;
  Host& host = known->second;
  for (uint32_t index : ranks->second) {
    Rank& rank = job.ranks[index];
    if (!rank.ended() && host.attached()) {
      const v1::TrainerKey& key = AddStray(host, job, index);
      if (!rank.record.started()) host.unstarted_strays.emplace_back(key, host.record.revision() + 1);
    }
    MarkGone(turn, job, rank, reason);
  }
}

// Counts the ranks of the host as ended without a failure: every rank has reported that it made all steps, so nothing
// is lost if a host cannot report how its ranks ended.
void CountAsEnded(Turn& turn, Job& job, const HostName& name, const std::string& reason) {
  turn.Notice(job, NoticeLevel::kWarning, absl::StrCat(reason, "; its ranks had made all steps"));
  LoseRanks(turn, job, name, reason);
  turn.Push(name);
}

}  // namespace

void LoseHost(Turn& turn, Job& job, const HostName& name, DecisionRule rule, const std::string& reason) {
  turn.Decide(job, rule, NoticeLevel::kWarning, reason);
  LoseRanks(turn, job, name, reason);
  v1::FailureRecord failure = MakeFailure(v1::FailureRecord::KIND_HOST, reason);
  bool known = job.record.has_failure() && !IsBetterCause(failure, job.record.failure());
  if (!known) FailGeneration(turn, job, failure);
  turn.Push(name);
  turn.Touch(job);
}

void LoseUnreachable(Turn& turn, Job& job, const std::string& why) {
  std::vector<HostName> names;
  for (const auto& [name, ranks] : job.ranks_on) {
    if (!IsReachable(turn.state, name)) names.push_back(name);
  }
  for (const HostName& name : names) {
    LoseHost(turn, job, name, DecisionRule::kOperator, absl::StrCat("host ", name.value(), " is lost: ", why));
  }
}

void CheckLostHosts(Turn& turn, Job& job) {
  const Reach reach = FindReach(turn.state, job);
  UpdateUnreachable(turn, job, reach);
  if (reach.unreachable.empty()) return;
  std::vector<PeerRank> peers;
  std::string broken;
  HostLossFacts facts = MakeFacts(turn, job, peers, broken);
  for (const HostName& name : reach.unreachable) {
    auto host = turn.state.hosts.find(name);
    facts.host = name.value();
    facts.received_go = HasReceivedGo(job, name);
    facts.silent_for = host == turn.state.hosts.end() ? absl::InfiniteDuration() : turn.now - host->second.last_contact;
    facts.lease = host == turn.state.hosts.end() ? turn.state.options.lease : LeaseFor(turn.state, host->second);
    HostLossDecision decision = DecideHostLoss(facts);
    if (!decision.lost) continue;
    if (decision.rule == DecisionRule::kAbandon && !MayAbandon(turn, job)) return;
    if (job.current.finished_at == absl::InfiniteFuture()) {
      LoseHost(turn, job, name, decision.rule, decision.reason);
    } else {
      CountAsEnded(turn, job, name, decision.reason);
    }
  }
}

}  // namespace trainyard
