// The data on which the cases of the parity tests train: samples of one endless text, some divided into two documents
// or without a loss at their beginning. Pure.
#pragma once

#include <cstdint>
#include <utility>

#include "tests/parity/training.h"
#include "worker/model/model.h"

namespace trainyard {

// Token `i` of the endless text on which all cases train.
int64_t TokenAt(int64_t i);
// Returns samples [first, first + count) of that text as (inputs, targets).
std::pair<at::Tensor, at::Tensor> Samples(int64_t first, int64_t count, int64_t context);

// Returns samples [first, first + count) of the training order of a case, without dropout.
MicroBatch BatchOf(const TrainingCase& training, int64_t first, int64_t count);

// The targets with a loss in samples [first, first + count).
uint64_t CountTargets(const TrainingCase& training, int64_t first, int64_t count);

}  // namespace trainyard
