// Makes tensors from the corpus. Sample i of a part of the corpus is the context + 1 bytes that start at i x context:
// the first `context` of them are the inputs, the last `context` the targets, so that every byte except the first is
// predicted once per epoch.
//
// Neither class owns the corpus; it must outlive them. Immutable, so thread-safe.
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
  // Uses at most the first `max_samples` samples, so that ranks that see different numbers can use the smallest.
  TrainingData(const Corpus& corpus, int64_t context, uint64_t seed, int64_t max_samples = INT64_MAX);

  // Samples [position, position + num_sequences) of the endless order.
  Batch At(uint64_t position, int64_t num_sequences) const;

  uint64_t num_samples() const { return sampler_.num_samples(); }

 private:
  const Corpus& corpus_;
  int64_t context_;
  Sampler sampler_;
};

// Fixed micro-batches of the validation part, spread evenly over it. They do not depend on the number of ranks.
class EvaluationData {
 public:
  // There are fewer than `num_batches` if the part does not hold enough samples; the last one may be short.
  // `max_samples`: as above.
  EvaluationData(const Corpus& corpus, int64_t context, int64_t num_batches, int64_t sequences_per_batch,
                 int64_t max_samples = INT64_MAX);

  int64_t num_samples() const { return num_samples_; }  // in the part; the batches may use fewer
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
