// A stalled group of ranks, for tests of policy/hang.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/hang.h"

namespace trainyard {

inline const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

inline std::string Operation(uint64_t number, const std::string& what = "8 x fp64") {
  return absl::StrCat("all-reduce ", number, " (", what, ")");
}

// A group that made its last progress at kStart; every rank continues to report.
class HangTest : public ::testing::Test {
 protected:
  HangTest() { facts_.since = kStart; }

  RankPosition& AddRank(Phase phase = Phase::kTrain) {
    RankPosition position;
    position.rank = static_cast<uint32_t>(facts_.ranks.size());
    position.host = absl::StrCat("w", position.rank + 1);
    position.phase = phase;
    position.last_step = 36;
    position.progress_at = kStart;
    facts_.ranks.push_back(position);
    return facts_.ranks.back();
  }
  // The rank is in operation `number` and has started `started` operations.
  static void WaitIn(RankPosition& rank, uint64_t number, uint64_t started, const std::string& last = "") {
    v1::CommunicatorReport& world = SetPosition(rank, started, last.empty() ? Operation(started) : last);
    world.set_waits_in(Operation(number));
    world.set_completed(number - 1);
  }
  // The rank computes; `started` is the number of the operation that it started last.
  static v1::CommunicatorReport& SetPosition(RankPosition& rank, uint64_t started, const std::string& last = "") {
    rank.communicators.assign(1, {});
    rank.communicators[0].set_name("world");
    rank.communicators[0].set_started(started);
    rank.communicators[0].set_completed(started > 0 ? started - 1 : 0);
    rank.communicators[0].set_last_started(last.empty() ? Operation(started) : last);
    return rank.communicators[0];
  }
  void SetLearned(Phase phase, double seconds, uint32_t doublings = 0) {
    facts_.phases[phase] = {.learned_s = seconds, .doublings = doublings};
  }
  // Returns the decision after this time without progress. All ranks have reported since, except those that are
  // unreachable, silent or stopped.
  HangDecision DecideAfter(absl::Duration after) {
    absl::Time now = kStart + after;
    for (RankPosition& rank : facts_.ranks) {
      if (rank.reachable) rank.seen_at = now;
      bool reports = rank.reachable && !rank.silent && rank.process_state != "T";
      rank.reported_at = reports ? now : kStart - absl::Milliseconds(300);
    }
    return DecideHang(now, facts_);
  }

  HangFacts facts_;
};

}  // namespace trainyard
