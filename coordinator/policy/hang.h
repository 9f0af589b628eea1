// When a group of ranks hangs, who holds it up, and what is done about it. Pure: the core calls it with what ranks and
// their daemons told.
//
// A group hangs when nothing of it moves (step, phase, operations started or completed) for longer than the phase that
// its ranks are in has ever taken. Who holds it up is read from the communicators: each counts its operations in one
// order on all ranks, so the rank that has not entered the operation in which the others wait is the one they wait for.
// How it does so (stopped, spinning, blocked in a system call) is told in the reason, but decides nothing, but for two
// facts that need no patience: a stopped process, and a process that no longer speaks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard {

// Nothing is looked at before the group has stood still for so long.
inline constexpr absl::Duration kHangExamineAfter = absl::Seconds(3);
// A daemon that was asked to look at a process is not waited for longer.
inline constexpr absl::Duration kExaminationWait = absl::Seconds(2);

// A rank that is to be ended for a hang lives so much longer, for its stack to be read.
inline constexpr absl::Duration kStackWait = absl::Seconds(5);

// The longest times that a phase took lately, over all ranks. One entry a step (of the last 64 that had one).
class PhaseTimes {
 public:
  void Add(uint64_t step, double seconds);
  // 0: none is known.
  double longest() const { return longest_; }

 private:
  std::deque<std::pair<uint64_t, double>> times_;
  double longest_ = 0;
};

struct PhaseFacts {
  double learned_s = 0;    // 0: not known yet
  uint32_t doublings = 0;  // hangs of this phase that led to a restart
};

// For how long nothing may move while a rank is in this phase.
absl::Duration HangLimit(absl::string_view phase, const PhaseFacts& facts);

// One rank, as it and its daemon told last.
struct RankPosition {
  uint32_t rank = 0;
  std::string host;
  bool reachable = true;  // its host is
  bool ended = false;     // its process has, or has no more to do

  std::string phase;
  uint64_t last_step = 0;
  double phase_s = 0;
  std::vector<v1::CommunicatorReport> communicators;
  absl::Time told_at = absl::InfinitePast();      // when it spoke itself
  absl::Time progress_at = absl::InfinitePast();  // when what it tells of itself last changed

  std::string process_state;                     // "T"; empty: not looked at
  absl::Time seen_at = absl::InfinitePast();     // when its daemon last told of it
  absl::Time busy_at = absl::InfinitePast();     // when its process last used the CPU
  bool silent = false;                           // its link is open, and it says nothing
  const v1::Examination* examination = nullptr;  // none: not asked, or not answered
};

struct HangFacts {
  absl::Time since;     // no stall began before: go, an attach of a host, a time when the coordinator was away
  bool restart = true;  // recovery.on_hang
  bool asked = false;   // daemons were asked to look, and at least one has not answered, and may yet
  std::vector<RankPosition> ranks;
  std::map<std::string, PhaseFacts> phases;
};

struct HangDecision {
  enum class Act {
    kNone,
    kExamine,  // ask the daemons of `culprits` to look at them
    kNotify,
    kRestart,
  };
  Act act = Act::kNone;
  std::vector<uint32_t> culprits;  // empty: no rank can be named
  std::string phase;               // whose limit ran out; empty: the state of a process was enough
  bool learned = false;            // by what was learned, or by the state of a process; not by patience alone
  absl::Time stalled_since = absl::InfiniteFuture();
  std::string reason;  // "rank 1 on w2 is stopped (SIGSTOP, state T) and ..."
};

HangDecision JudgeHang(absl::Time now, const HangFacts& facts);

}  // namespace trainyard
