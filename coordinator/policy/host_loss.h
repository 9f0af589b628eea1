// Decides whether an unreachable host counts as lost for one job. Pure. Lost contact alone is not sufficient, because
// trainers run without daemon and coordinator. After its lease has expired, a host is lost in one of these cases (an
// operator's `drain --lost` needs no rule):
//
//   broken     a rank on a reachable host reported a broken collective, or has failed itself
//   ending     the group is being ended, a host of the job is reachable, and no rank runs on a reachable host
//   stall      every reachable rank waits in the same operation, and no step was completed for 0.8 of the lease
//              plus two learned step times. Stages of a pipeline wait in different channels, or in collectives among
//              themselves; for them the case also requires that no reachable rank started or completed an operation
//              in that time. The time for which a reachable rank is overdue with its report is subtracted: if the
//              coordinator itself is cut off, all hosts become silent, but the lease of one expires first, while the
//              others still count as reachable. A rank that evaluates, saves or makes its first step must also have
//              exceeded the learned limit of that phase. If the host may not have received `go` (no step was made),
//              its trainers may still wait for it: then the limit is kFormingPatience
//   command    the ranks run a command, which reports no waits, at least one of them is on a reachable host, and the
//              host was silent for kFormingPatience
//   forming    the group is forming, has a rank on a reachable host, and has made no progress for kFormingPatience
//   abandon    no host of the job was reachable for recovery.abandon_after_s
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/policy/notice.h"

namespace trainyard {

// How long a forming group waits for an unreachable host before it uses other hosts. Waiting loses nothing, and a
// daemon that is restarted, stopped or cut off briefly comes back within this time.
inline constexpr absl::Duration kFormingPatience = absl::Seconds(30);

// The limit of a stall is this share of the lease plus two steps. The stall begins together with the silence. The rest
// of the lease is left for its detection, which takes a tick or a report, so the decision is made within one lease plus
// two steps of the silence.
inline constexpr double kStallShare = 0.8;

// A rank that runs on a reachable host: its process has not exited.
struct PeerRank {
  bool reports = false;        // has reported recently, and since its host last attached
  absl::Duration report_age;   // age of its last report
  bool suspect = false;        // is the culprit of a suspected hang: others wait for this rank, not for the lost host
  absl::string_view waits_in;  // "all-reduce 17 (6553600 x fp32)"; empty: it waits in no collective
  absl::Duration unchanged;    // time since its operations last changed
  absl::Duration phase_time;   // time in its current phase
  absl::Duration phase_limit;  // learned limit of that phase; infinite: unknown
};

struct HostLossFacts {
  absl::string_view host;
  absl::Duration silent_for;  // time since the last contact
  absl::Duration lease;
  bool forming = false;                 // PLACED or STARTING
  bool ending = false;                  // the group is being ended
  bool received_go = true;              // the host's ranks are known to have received `go`
  bool is_command = false;              // the ranks run a command, which reports neither steps nor waits
  size_t ranks_on_reachable_hosts = 0;  // ranks on reachable hosts, running or not
  absl::string_view broken;             // a rank's report of a broken collective, or how it failed; empty: none
  absl::Span<const PeerRank> peers;
  absl::Duration since_progress;      // since the group's last progress; if it trains, since the last completed step
  absl::Duration learned_step;        // zero: unknown
  absl::Duration none_reachable_for;  // zero: some host of the job is reachable
  absl::Duration abandon_after;
};

struct HostLossDecision {
  bool lost = false;
  DecisionRule rule = DecisionRule::kHostLost;  // or kAbandon
  std::string reason;  // "host w2 is lost: no contact for 3.2s, and ..."; if it is not lost: why not
};

HostLossDecision DecideHostLoss(const HostLossFacts& facts);

}  // namespace trainyard
