#include "coordinator/policy/host_loss.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/channel_wait.h"
#include "coordinator/policy/report_interval.h"

namespace trainyard {
namespace {

std::string Rounded(absl::Duration time) { return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(100))); }

HostLossDecision Lost(const HostLossFacts& facts, DecisionRule rule, absl::string_view why) {
  return {.lost = true,
          .rule = rule,
          .reason =
              absl::StrCat("host ", facts.host, " is lost: no contact for ", Rounded(facts.silent_for), ", and ", why)};
}

HostLossDecision Kept(std::string why) {
  return {.lost = false, .rule = DecisionRule::kHostLost, .reason = std::move(why)};
}

// Decides by the rule `stall` of host_loss.h: the host is lost if all reachable ranks have waited for too long. If the
// rule does not apply, the decision's reason, which is not published, says why.
HostLossDecision DecideStall(const HostLossFacts& facts) {
  if (facts.peers.empty()) return Kept("no rank on a reachable host can report it");
  if (facts.received_go && facts.learned_step <= absl::ZeroDuration()) return Kept("the step time is not known yet");
  absl::string_view operation = facts.peers.front().waits_in;
  absl::Duration max_unreported = absl::ZeroDuration();
  absl::Duration unchanged = absl::InfiniteDuration();  // the shortest of all peers, in a pipeline
  const bool is_pipeline = std::any_of(facts.peers.begin(), facts.peers.end(),
                                       [](const PeerRank& peer) { return IsChannelWait(peer.waits_in); });
  for (const PeerRank& peer : facts.peers) {
    if (!peer.reports) return Kept("a rank on a reachable host does not report");
    const absl::Duration unreported = std::max(absl::ZeroDuration(), peer.report_age - kReportInterval);
    max_unreported = std::max(max_unreported, unreported);
    if (peer.suspect) return Kept("a rank on a reachable host is suspected of hanging");
    if (peer.waits_in.empty()) return Kept("its peers do not wait for it");
    if (!is_pipeline && peer.waits_in != operation) return Kept("its peers do not wait for it");
    if (is_pipeline) unchanged = std::min(unchanged, peer.unchanged);
    // The usual duration of a first step is often unknown. Before `go`, a wrong decision costs only a new forming of
    // the group.
    bool ignores_limit = !facts.received_go && peer.phase_limit == absl::InfiniteDuration();
    const absl::Duration known_time = std::max(absl::ZeroDuration(), peer.phase_time - unreported);
    if (!ignores_limit && known_time < peer.phase_limit) return Kept("a rank's phase has not reached its limit");
  }
  absl::Duration limit = facts.received_go ? kStallShare * facts.lease + 2 * facts.learned_step : kFormingPatience;
  const absl::Duration stalled = std::min(facts.since_progress, unchanged) - max_unreported;
  if (stalled < limit) {
    return Kept(facts.received_go ? "its peers may still complete a step" : "its ranks may still wait for `go`");
  }
  return Lost(facts, DecisionRule::kHostLost,
              absl::StrCat("every reachable rank waits", is_pipeline ? ", one in " : " in ", operation,
                           ", no step completed for ", Rounded(stalled), " (limit ", Rounded(limit), ")",
                           facts.received_go ? "" : "; its ranks have not reported that they began"));
}

// No rank of a command reports whether it waits for the host, so time alone decides.
HostLossDecision DecideCommand(const HostLossFacts& facts) {
  if (facts.ranks_on_reachable_hosts == 0) return Kept("no host of the job is reachable");
  if (facts.silent_for < kFormingPatience) return Kept("the ranks of its command may still run");
  return Lost(facts, DecisionRule::kHostLost,
              absl::StrCat("the ranks of a command report no progress (limit ", Rounded(kFormingPatience), ")"));
}

}  // namespace

HostLossDecision DecideHostLoss(const HostLossFacts& facts) {
  if (facts.silent_for <= facts.lease) return Kept("its lease has not expired");
  if (facts.none_reachable_for > absl::ZeroDuration() && facts.none_reachable_for >= facts.abandon_after) {
    return Lost(facts, DecisionRule::kAbandon,
                absl::StrCat("no host of the job was reachable for ", Rounded(facts.none_reachable_for),
                             " (recovery.abandon_after_s ", absl::ToDoubleSeconds(facts.abandon_after), ")"));
  }
  if (!facts.broken.empty()) return Lost(facts, DecisionRule::kHostLost, facts.broken);
  if (facts.ending) {
    // At least one rank has ended or is being killed; unreachable ranks cannot complete a step alone.
    if (facts.ranks_on_reachable_hosts == 0) return Kept("no host of the job is reachable");
    if (!facts.peers.empty()) return Kept("reachable ranks of the group are still being ended");
    return Lost(facts, DecisionRule::kHostLost, "every reachable rank of the group has ended");
  }
  if (facts.forming) {
    if (facts.ranks_on_reachable_hosts == 0) return Kept("no host of the job is reachable");
    if (facts.since_progress < kFormingPatience) return Kept("the forming group still waits for it");
    return Lost(facts, DecisionRule::kHostLost,
                absl::StrCat("the forming group has made no progress for ", Rounded(facts.since_progress), " (limit ",
                             Rounded(kFormingPatience), ")"));
  }
  return facts.is_command ? DecideCommand(facts) : DecideStall(facts);
}

}  // namespace trainyard
