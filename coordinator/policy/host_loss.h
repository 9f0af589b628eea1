// Decides whether a host that is unreachable counts as lost for one job. Pure. Lost contact alone never does: trainers
// step without daemon and coordinator. What does, once its lease has run out (the operator's word needs no rule):
//
//   broken     (a) a rank on a reachable host told a broken collective, or has failed itself
//   over       the end of the group was asked for, and no reachable rank of it is left
//   stall      (b) every reachable rank waits in the same operation, and no step was completed for 0.8 of the lease and
//                  two learned steps, as far as each of them was heard: where it is the coordinator that is cut off,
//                  all fall silent at once, and one of them first. A rank that evaluates, saves or makes its first step
//                  is given that phase's time. Where the host may not have heard `go` (which tells that no step was
//                  made), its trainers may be waiting for that word: then no sooner than by the rule for forming
//   forming    the group forms, and nothing of it has moved for kFormingPatience
//   abandon    no host of the job was reachable for recovery.abandon_after_s
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace trainyard {

// A group that forms through its daemons waits so long for one that is unreachable before it takes other hosts. Nothing
// is lost by waiting, and a daemon that is restarted, stopped or cut off for a moment comes back within it.
inline constexpr absl::Duration kFormingPatience = absl::Seconds(30);

// No step was completed for this share of the lease and two steps: the stall begins when the silence does, is counted
// exactly, and both are seen within a tick or a report of it; so the decision falls within the lease and two steps.
inline constexpr double kStallShare = 0.8;

// A little more than the time from one report of a rank to the next: nothing is known of a peer beyond that.
inline constexpr absl::Duration kReportInterval = absl::Milliseconds(600);

// A rank on a reachable host that has not ended.
struct PeerRank {
  bool reports = false;        // has reported since its link was last open, and lately
  absl::Duration unheard;      // since its last report was made
  bool suspect = false;        // is the culprit of a suspected hang: others wait for it, not for the host
  absl::string_view waits_in;  // "all-reduce 17 (6553600 x fp32)"; empty: waits in no collective
  absl::Duration phase_time;   // in its present phase
  absl::Duration phase_limit;  // of that phase, as learned; infinite: not learned yet
};

struct HostLossFacts {
  absl::string_view host;
  absl::Duration silent;  // not heard of for
  absl::Duration lease;
  bool forming = false;        // PLACED or STARTING
  bool over = false;           // the group is being ended
  bool begun = true;           // the host's ranks are known to have heard `go`
  size_t reachable_ranks = 0;  // on reachable hosts, ended or not
  absl::string_view broken;    // what a rank told of a broken collective, or how it failed; empty: none did
  absl::Span<const PeerRank> peers;
  absl::Duration since_progress;      // forming: since anything of the group moved; else since the last completed step
  absl::Duration learned_step;        // zero: not learned yet
  absl::Duration none_reachable_for;  // zero: some host of the job is reachable
  absl::Duration abandon_after;
};

struct HostLossDecision {
  bool lost = false;
  const char* rule = "host_lost";  // or abandon
  std::string reason;              // "host w2 is lost: not heard of for 3.2s, and ..."; not lost: what is missing
};

HostLossDecision DecideHostLoss(const HostLossFacts& facts);

}  // namespace trainyard
