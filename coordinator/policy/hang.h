// Decides whether a group of ranks hangs, which ranks cause it, and what to do. Pure: its input is what ranks and their
// daemons have reported.
//
// A group hangs when nothing in it progresses (step, phase, operations started or completed) for much longer than the
// current phase of its ranks recently took. The culprit is derived from the communicators: each numbers its operations
// in the same order on all ranks, so the others wait for the rank that has not entered their operation. A channel
// numbers its packets at both ends: a receiver waits for a sender that has sent fewer packets, and a sender that waits
// for a free slot waits for a receiver that has received fewer. Other differences between the two ends are normal. The
// state of a process (stopped, spinning, blocked in a system call) is part of the reason, but does not affect the
// decision, with three exceptions. A stopped process and a process that no longer sends reports count as hanging
// without waiting for the limit. If a debugger holds a culprit, the group is not restarted. While the usual duration of
// the phase is not known, use of the CPU counts as progress.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/phase.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard {

// Ranks are examined only after the group has made no progress for this long.
inline constexpr absl::Duration kHangExamineAfter = absl::Seconds(3);
// How long to wait for a daemon that was asked to examine a process.
inline constexpr absl::Duration kExaminationWait = absl::Seconds(2);

// A rank that is ended because of a hang is given this much more time, so that its stack can be read.
inline constexpr absl::Duration kStackWait = absl::Seconds(5);

// The longest recent durations of a phase over all ranks: one entry per step, for the last 64 steps that had the phase.
class PhaseTimes {
 public:
  void Add(uint64_t step, double seconds);
  // 0: unknown.
  double longest() const { return longest_; }

 private:
  std::deque<std::pair<uint64_t, double>> times_;
  double longest_ = 0;
};

struct PhaseFacts {
  double learned_s = 0;    // the longest recent duration; 0: unknown
  uint32_t doublings = 0;  // of the limit: the number of hangs in this phase that led to a restart
  // A script decides when it reports, and evaluates and saves between two reports, so its limits are far longer.
  bool is_script = false;
};

// How long a group may make no progress while a rank is in this phase.
absl::Duration HangLimit(const ReportedPhase& phase, const PhaseFacts& facts);

// The last reports of one rank and of its daemon.
struct RankPosition {
  uint32_t rank = 0;
  std::string host;
  bool reachable = true;  // whether its host is reachable
  bool ended = false;     // its process has exited or has nothing more to do
  // The Python package sends its reports from a process of its own, so their absence proves nothing.
  bool is_script = false;

  ReportedPhase phase;
  uint64_t last_step = 0;
  double phase_s = 0;
  std::vector<v1::CommunicatorReport> communicators;
  absl::Time reported_at = absl::InfinitePast();  // time of the rank's own last report
  absl::Time progress_at = absl::InfinitePast();  // when the rank's own reports last changed

  std::string process_state;                     // as in /proc/PID/stat: "T"; empty: unknown
  absl::Time seen_at = absl::InfinitePast();     // time of the daemon's last report about the rank
  absl::Time busy_at = absl::InfinitePast();     // when its process last used the CPU
  bool silent = false;                           // its link is open, but it sends nothing
  const v1::Examination* examination = nullptr;  // null: not requested, or not answered
};

struct HangFacts {
  absl::Time since;        // no stall began before this: the latest `go` or call of RestartStallTimer
  bool restart = true;     // recovery.on_hang is not `notify`
  bool examining = false;  // daemons were asked to examine ranks, and at least one answer is outstanding
  std::vector<RankPosition> ranks;
  std::map<ReportedPhase, PhaseFacts> phases;
};

struct HangDecision {
  enum class Act {
    kNone,
    kExamine,  // ask the daemons of `culprits` to examine them
    kNotify,
    kRestart,
  };
  Act act = Act::kNone;
  std::vector<uint32_t> culprits;  // empty: no rank can be identified
  ReportedPhase phase;             // the one whose limit was exceeded; none: the state of a process was sufficient
  bool learned = false;  // based on a learned time or the state of a process, and not on the default limit only
  absl::Time stalled_since = absl::InfiniteFuture();
  std::string reason;  // "rank 1 on w2 is stopped (SIGSTOP, state T) and ..."
};

HangDecision DecideHang(absl::Time now, const HangFacts& facts);

}  // namespace trainyard
