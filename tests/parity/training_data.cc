#include "tests/parity/training_data.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>
#include <vector>

#include "tests/parity/training_rank.h"
#include "worker/data/sampler.h"

namespace trainyard {
namespace {

// Returns samples [first, first + count) of the training order.
std::pair<at::Tensor, at::Tensor> SamplesInOrder(const TrainingCase& training, int64_t first, int64_t count,
                                                 int64_t context) {
  if (training.epoch == 0) return Samples(first, count, context);
  const Sampler sampler(static_cast<uint64_t>(training.epoch), kTrainingSeed);
  std::vector<at::Tensor> inputs, targets;
  for (int64_t i = first; i < first + count; ++i) {
    auto [input, target] = Samples(static_cast<int64_t>(sampler.At(static_cast<uint64_t>(i))), 1, context);
    inputs.push_back(input);
    targets.push_back(target);
  }
  return {at::cat(inputs), at::cat(targets)};
}

// Where the second document of sample `i` of the training order begins; half of the first document has no loss.
int64_t SecondDocument(int64_t i, int64_t context) { return 2 + (7 * i) % (context - 3); }
int64_t MaskedTargets(int64_t i, int64_t context) { return SecondDocument(i, context) / 2; }

}  // namespace

// A learnable text: mostly the square of the position, sometimes noise.
int64_t TokenAt(int64_t i) {
  uint64_t noise = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
  noise ^= noise >> 29;
  return noise % 5 == 0 ? static_cast<int64_t>(noise / 5 % 64) : i * i % 64;
}

std::pair<at::Tensor, at::Tensor> Samples(int64_t first, int64_t count, int64_t context) {
  at::Tensor inputs = at::empty({count, context}, at::kLong), targets = at::empty({count, context}, at::kLong);
  for (int64_t i = 0; i < count * context; ++i) {
    inputs.mutable_data_ptr<int64_t>()[i] = TokenAt(first * context + i);
    targets.mutable_data_ptr<int64_t>()[i] = TokenAt(first * context + i + 1);
  }
  return {inputs, targets};
}

MicroBatch BatchOf(const TrainingCase& training, int64_t first, int64_t count) {
  const int64_t context = training.model().context;
  MicroBatch batch;
  std::tie(batch.inputs, batch.targets) = SamplesInOrder(training, first, count, context);
  if (training.documents) batch.starts = at::zeros_like(batch.inputs);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t start = SecondDocument(first + row, context);
    if (training.documents) batch.starts.select(0, row).narrow(0, start, context - start).fill_(start);
    if (training.masked) batch.targets.select(0, row).narrow(0, 0, MaskedTargets(first + row, context)).fill_(-1);
  }
  return batch;
}

uint64_t CountTargets(const TrainingCase& training, int64_t first, int64_t count) {
  const int64_t context = training.model().context;
  int64_t targets = count * context;
  for (int64_t i = first; training.masked && i < first + count; ++i) targets -= MaskedTargets(i, context);
  return static_cast<uint64_t>(targets);
}

}  // namespace trainyard
