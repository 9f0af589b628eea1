// The line that rank 0 writes to its log for each epoch of the training data: "Epoch 1: loss = 2.3456", the mean of the
// training losses over the tokens of the epoch. A step belongs to the epoch of its first sample, so the step in which
// an epoch ends counts for this epoch with all its tokens. Steps whose loss is not finite are left out. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard {

// A step of an epoch: its mean loss and the number of its tokens with loss.
struct EpochStep {
  uint64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;
};

class EpochLog {
 public:
  // `samples`: in an epoch; 0: the data has no end, and there are no lines. `consumed`: samples used before the next
  // step. `earlier`: the steps of the epoch under way that were made before. They are complete if `is_whole`.
  EpochLog(uint64_t samples, uint64_t consumed, const std::vector<EpochStep>& earlier = {}, bool is_whole = true);

  // Called for each step in order; `consumed` includes it. Returns the line, or an empty text if the epoch is not over.
  std::string Line(const EpochStep& step, uint64_t consumed);

 private:
  void Add(const EpochStep& step);

  const uint64_t samples_;
  uint64_t ended_ = 0;       // epochs
  uint64_t first_step_ = 0;  // the first known one of the epoch under way; 0: none
  bool is_whole_;
  double loss_sum_ = 0;
  double tokens_ = 0;
};

}  // namespace trainyard
