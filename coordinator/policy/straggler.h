// Which ranks are much slower than the others, and have been for long. Only computing counts, a micro-batch at a time:
// in waiting all ranks of a group are alike, and some are dealt one micro-batch more than others. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard {

// A rank's computing over about the last 30 s, from the totals it tells.
class ComputeWindow {
 public:
  // Totals since the trainer began.
  void Add(absl::Time at, double compute_s, uint64_t micro_batches, uint64_t steps, double wait_s = 0);
  // Means over the window; 0: too little is known yet.
  double MicroBatchSeconds() const;
  double StepSeconds() const;
  // Of computing and waiting for other ranks together, what the waiting was; 0 also where too little is known yet.
  double WaitShare() const;

 private:
  struct Sample {
    absl::Time at;
    double compute_s;
    uint64_t micro_batches;
    uint64_t steps;
    double wait_s;
  };
  // The oldest and the newest where they lie far enough apart; else null.
  const Sample* First() const;

  std::deque<Sample> samples_;
};

// One rank, and what is remembered of it from one judgement to the next.
struct StragglerFacts {
  uint32_t rank = 0;
  std::string host;
  double micro_batch_s = 0;  // 0: not known
  absl::Time slow_since = absl::InfiniteFuture();
  bool named = false;
};

// A rank that is named now, or is one no longer.
struct StragglerChange {
  uint32_t rank = 0;
  bool named = false;
  std::string text;  // "rank 2 on w3 is slow: 31.0 ms a micro-batch, 1.6 times the median of the other ranks"
};

// A rank is named once it has been slower than 1.3 times the median of the other ranks for 30 s, and is no more once it
// is below 1.2 times. Changes `slow_since` and `named` of `ranks`. Below three ranks there is no telling who is slow
// and who is fast: of two the slower one is named.
std::vector<StragglerChange> JudgeStragglers(absl::Time now, std::vector<StragglerFacts>& ranks);

}  // namespace trainyard
