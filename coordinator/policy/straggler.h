// Finds ranks that have been much slower than the others for a long time. Only the computing time per micro-batch
// counts: all ranks of a group wait equally long, and some have one micro-batch more than others. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace trainyard {

// A rank's computing time over about the last 30 s, from the totals that it reports.
class ComputeWindow {
 public:
  // Totals since the trainer started.
  void Add(absl::Time at, double compute_s, uint64_t micro_batches, uint64_t steps, double wait_s = 0);
  // Means over the window; 0: not enough data.
  double MicroBatchSeconds() const;
  double StepSeconds() const;
  // The share of waiting in the total of computing and waiting for other ranks; 0 also if there is not enough data.
  double WaitShare() const;

 private:
  struct Sample {
    absl::Time at;
    double compute_s;
    uint64_t micro_batches;
    uint64_t steps;
    double wait_s;
  };
  // The oldest sample if the window is long enough, otherwise null.
  const Sample* First() const;

  std::deque<Sample> samples_;
};

// One rank, with its state from the previous call.
struct StragglerFacts {
  uint32_t rank = 0;
  std::string host;
  double micro_batch_s = 0;  // 0: unknown
  absl::Time slow_since = absl::InfiniteFuture();
  bool named = false;
};

// A rank that is now named as slow, or no longer.
struct StragglerChange {
  uint32_t rank = 0;
  bool named = false;
  std::string text;  // "rank 2 on w3 is slow: 31.0 ms per micro-batch, 1.60 times the median of the other ranks"
};

// A rank is named when it has been slower than 1.3 times the median of the other ranks for 30 s, and no longer named
// when it is below 1.2 times. Changes `slow_since` and `named` of `ranks`. With two ranks the slower one is named,
// because it is unknown which of them has the normal speed.
std::vector<StragglerChange> FindStragglers(absl::Time now, std::vector<StragglerFacts>& ranks);

}  // namespace trainyard
