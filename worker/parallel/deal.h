// Which micro-batches of a step a rank runs. A step is global / micro micro-batches, dealt to the data ranks in order
// like cards: micro-batch i goes to data rank i % num_data_ranks. So the samples of a step are those of the job,
// whatever its size. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace trainyard {

struct Deal {
  int64_t num_micro_batches = 0;       // of the step, all ranks together
  int64_t num_rounds = 0;              // of the step, on every rank: the most that any rank is dealt
  std::vector<int64_t> micro_batches;  // this rank's, in order; may be one shorter than those of lower ranks, or empty
};

// REQUIRES: micro divides global; 0 <= data_rank < num_data_ranks.
Deal DealStep(int64_t global, int64_t micro, int data_rank, int num_data_ranks);

}  // namespace trainyard
