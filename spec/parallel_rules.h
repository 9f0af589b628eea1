// What `parallel` and `train.batch` mean for a job of so many ranks: the sizes of the data axes, which keys have an
// effect, how a step is dealt. Pure.
//
//   shard 2 x replicate 3 = 6 ranks:   0 1 | 2 3 | 4 5    each pair holds one copy of what is sharded
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// What a strategy shards over `shard` ranks; an unset strategy is ddp.
bool ShardsParameters(v1::DataParallel strategy);
bool ShardsGradients(v1::DataParallel strategy);
bool ShardsOptimizerState(v1::DataParallel strategy);

struct DataSizes {
  uint64_t shard = 1;
  uint64_t replicate = 1;
};
// REQUIRES: CheckParallel finds no error.
DataSizes DataSizesOf(const v1::Parallel& parallel, uint64_t ranks);

// How global / micro micro-batches are dealt to the ranks: in rounds, the last of which may leave ranks idle.
struct DealShape {
  uint64_t micro_batches = 0;
  uint64_t rounds = 0;
  uint64_t idle = 0;  // ranks without a micro-batch, over all rounds
};
// REQUIRES: micro divides global; ranks > 0.
DealShape DealShapeOf(uint64_t global, uint64_t micro, uint64_t ranks);

// What `train.batch.micro: auto` comes to: the largest divisor of `global` whose deal leaves the smallest share idle.
uint64_t AutoMicro(uint64_t global, uint64_t ranks);

// `ranks` 0: not known. As for ValidateJob, a key that was given must be told from one that was not.
void CheckParallel(const v1::JobSpec& spec, uint64_t ranks, const Positions& positions, Problems* problems);
void CheckBatch(const v1::Batch& batch, uint64_t ranks, const Positions& positions, Problems* problems);

}  // namespace trainyard
