// From the corpus to tensors. Sample i of a part of the corpus is the context + 1 bytes that start at i x context: the
// first `context` of them are the inputs, the last `context` the targets, so that every byte but the first is predicted
// once an epoch.
//
// Neither class owns the corpus; it must outlive them. Thread-safe: nothing changes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/data/corpus.h"
#include "worker/data/sampler.h"

namespace trainyard {

// int64, [sequences, context].
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

// Samples of the training part in the sampler's order.
class TrainingData {
 public:
  // At most `max_samples` are used, from the start: ranks that see different numbers agree on one.
  TrainingData(const Corpus& corpus, int64_t context, uint64_t seed, int64_t max_samples = INT64_MAX);

  // Samples [position, position + num_sequences) of the endless order.
  Batch At(uint64_t position, int64_t num_sequences) const;

  uint64_t num_samples() const { return sampler_.num_samples(); }

 private:
  const Corpus& corpus_;
  int64_t context_;
  Sampler sampler_;
};

// Fixed micro-batches of the validation part, spread evenly over it: always the same ones, whatever the ranks.
class EvaluationData {
 public:
  // Fewer than `num_batches` are made when the part does not hold as many samples; the last may be short.
  // `max_samples`: as above.
  EvaluationData(const Corpus& corpus, int64_t context, int64_t num_batches, int64_t sequences_per_batch,
                 int64_t max_samples = INT64_MAX);

  int64_t num_samples() const { return num_samples_; }  // there are; not all need be used
  int64_t num_batches() const { return num_batches_; }
  int64_t num_tokens() const { return num_sequences_ * context_; }  // of all batches
  Batch At(int64_t batch) const;

 private:
  const Corpus& corpus_;
  int64_t context_;
  int64_t sequences_per_batch_;
  int64_t num_samples_;
  int64_t num_sequences_;
  int64_t num_batches_;
};

}  // namespace trainyard
