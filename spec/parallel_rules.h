// The rules of `parallel` and `train.batch` for a given number of data ranks: the sizes of the data axes, the keys that
// have an effect, the micro-batches of each data rank. The rules of the other axes are in model_parallel_rules.h. Pure.
//
//   shard 2 x replicate 3 = 6 data ranks:   0 1 | 2 3 | 4 5    each pair holds one copy of the sharded state
#pragma once

#include <cstdint>

#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Which state a strategy shards over `shard` ranks. An unset strategy is ddp.
bool ShardsParameters(v1::DataParallel strategy);
bool ShardsGradients(v1::DataParallel strategy);
bool ShardsOptimizerState(v1::DataParallel strategy);

struct DataSizes {
  uint64_t shard = 1;
  uint64_t replicate = 1;
};
// Returns the two sizes, whose product is `data_ranks` (job_layout.h). REQUIRES: CheckParallel finds no error.
DataSizes DataSizesOf(const v1::Parallel& parallel, uint64_t data_ranks);

// How the micro-batches of a step, global / micro of them, are assigned to the data ranks: one per data rank in each
// round, and the last round may leave some idle.
struct DealShape {
  uint64_t micro_batches = 0;
  uint64_t rounds = 0;
  uint64_t idle = 0;  // data ranks without a micro-batch in the last round
};
// REQUIRES: micro divides global; data_ranks > 0.
DealShape DealShapeOf(uint64_t global, uint64_t micro, uint64_t data_ranks);

// A pipeline with this many micro-batches for each stage is idle for less than a fifth of the time.
inline constexpr uint64_t kAutoRoundsPerStage = 4;

// What `train.batch.micro: auto` aims at.
struct MicroGoal {
  uint64_t rounds = 1;    // this many or more
  uint64_t multiple = 1;  // above 1: the rounds are a multiple of it, and the last one leaves no data rank idle
};
// Returns the divisor of `global` that reaches the goal, or comes nearest to it; among several such divisors the one
// with the smallest share of idle time, and among those with equal shares the largest.
uint64_t AutoMicro(uint64_t global, uint64_t data_ranks, const MicroGoal& goal = {});

// Returns train.batch.micro, or the value for `auto`; 0 if it is unknown: the global batch or `data_ranks` is 0.
uint64_t DecidedMicro(const v1::JobSpec& spec, uint64_t data_ranks);

// `data_ranks` 0: unknown. As for ValidateJob, defaults are not applied yet.
void CheckParallel(const v1::JobSpec& spec, uint64_t data_ranks, const Positions& positions, Problems* problems);
void CheckBatch(const v1::JobSpec& spec, uint64_t data_ranks, const Positions& positions, Problems* problems);

}  // namespace trainyard
