// Finds stragglers: ranks that have been much slower than the others for a long time. Only the computing time per
// micro-batch is compared: the steps of all ranks take equally long, because the ranks wait for the slowest one, and
// some ranks have one micro-batch more than others. The stages of a pipeline compute different parts of the model, so
// each rank is compared with those of its own stage. Pure.
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
  uint64_t stage = 0;        // of a pipeline
  double micro_batch_s = 0;  // 0: unknown
  absl::Time slow_since = absl::InfiniteFuture();
  bool is_straggler = false;
};

// A rank that has become a straggler, or is one no longer.
struct StragglerChange {
  uint32_t rank = 0;
  bool is_straggler = false;
  std::string text;  // "rank 2 on w3 is slow: 31.0 ms per micro-batch, 1.60 times the median of the other ranks"
};

// A rank becomes a straggler when its time has been above 1.3 times the median of the other ranks of its stage for
// 30 s, and remains one until it is below 1.2 times. Changes `slow_since` and `is_straggler` of `ranks`. In a
// stage of two ranks, the slower one can become a straggler, although it may be the other one whose speed is unusual.
// The only rank of a stage never becomes a straggler.
std::vector<StragglerChange> FindStragglers(absl::Time now, std::vector<StragglerFacts>& ranks);

}  // namespace trainyard
