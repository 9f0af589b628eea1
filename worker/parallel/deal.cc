#include "worker/parallel/deal.h"

namespace trainyard {

Deal DealStep(int64_t global, int64_t micro, int data_rank, int num_data_ranks) {
  Deal deal;
  deal.num_micro_batches = global / micro;
  deal.num_rounds = (deal.num_micro_batches + num_data_ranks - 1) / num_data_ranks;
  for (int64_t i = data_rank; i < deal.num_micro_batches; i += num_data_ranks) deal.micro_batches.push_back(i);
  return deal;
}

}  // namespace trainyard
