// The rules of `parallel` and `train.batch` for a given number of ranks: the sizes of the data axes, the keys that have
// an effect, the micro-batches of each rank. Pure.
//
//   shard 2 x replicate 3 = 6 ranks:   0 1 | 2 3 | 4 5    each pair holds one copy of the sharded state
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// The state that a strategy shards over `shard` ranks; an unset strategy is ddp.
bool ShardsParameters(v1::DataParallel strategy);
bool ShardsGradients(v1::DataParallel strategy);
bool ShardsOptimizerState(v1::DataParallel strategy);

struct DataSizes {
  uint64_t shard = 1;
  uint64_t replicate = 1;
};
// REQUIRES: CheckParallel finds no error.
DataSizes DataSizesOf(const v1::Parallel& parallel, uint64_t ranks);

// How the global / micro micro-batches of a step are assigned to the data ranks: one per rank in each round, and the
// last round may leave ranks idle. All ranks of a job are data ranks, because `parallel` has no other axes.
struct DealShape {
  uint64_t micro_batches = 0;
  uint64_t rounds = 0;
  uint64_t idle = 0;  // ranks without a micro-batch in the last round
};
// REQUIRES: micro divides global; data_ranks > 0.
DealShape DealShapeOf(uint64_t global, uint64_t micro, uint64_t data_ranks);

// Returns the value for `train.batch.micro: auto`: the divisor of `global` with the smallest share of idle time, the
// largest of equal ones.
uint64_t AutoMicro(uint64_t global, uint64_t data_ranks);

// `ranks` 0: unknown. As for ValidateJob, defaults are not applied yet.
void CheckParallel(const v1::JobSpec& spec, uint64_t ranks, const Positions& positions, Problems* problems);
void CheckBatch(const v1::Batch& batch, uint64_t ranks, const Positions& positions, Problems* problems);

}  // namespace trainyard
