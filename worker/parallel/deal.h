// Which micro-batches of a step, or batches of an evaluation, a rank runs. A step consists of global / micro
// micro-batches, dealt to the data ranks in order like cards: micro-batch i goes to data rank i % num_data_ranks. So
// the samples of a step do not depend on the number of ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace trainyard {

struct Deal {
  int64_t num_micro_batches = 0;       // of the step, all ranks together
  int64_t num_rounds = 0;              // of the step, the same on every rank: the largest number dealt to any rank
  std::vector<int64_t> micro_batches;  // this rank's, in order; may be one shorter than those of lower ranks, or empty
};

// REQUIRES: micro divides global; 0 <= data_rank < num_data_ranks.
Deal DealStep(int64_t global, int64_t micro, int data_rank, int num_data_ranks);

}  // namespace trainyard
