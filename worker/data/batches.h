// Makes tensors from the samples of a source.
//
// Neither class owns the source; it must outlive them. Immutable, so thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/data/sample_source.h"
#include "worker/data/sampler.h"

namespace trainyard {

// int64, [sequences, tokens].
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;       // kNoTarget: no loss
  int64_t loss_tokens = 0;  // the number of all other targets
};

// Samples of the training part in the sampler's order.
class TrainingData {
 public:
  // Uses at most the first `max_samples` samples, so that ranks that see different numbers can use the smallest.
  // REQUIRES: the part has a sample.
  TrainingData(const SampleSource& source, uint64_t seed, int64_t max_samples = INT64_MAX);

  // Samples [position, position + num_sequences) of the endless order.
  Batch At(uint64_t position, int64_t num_sequences) const;
  // The tokens with loss in these samples. For all samples of a step this is the divisor of its gradient, which every
  // rank counts alike, without communication.
  uint64_t LossTokens(uint64_t position, int64_t num_sequences) const;

  uint64_t num_samples() const { return sampler_.num_samples(); }

 private:
  const SampleSource& source_;
  Sampler sampler_;
};

// Fixed micro-batches of the validation part, spread evenly over it. They do not depend on the number of ranks.
class EvaluationData {
 public:
  // There are fewer than `num_batches` if the part does not hold enough samples; the last one may be short.
  // `max_samples`: as above.
  EvaluationData(const SampleSource& source, int64_t num_batches, int64_t sequences_per_batch,
                 int64_t max_samples = INT64_MAX);

  int64_t num_samples() const { return num_samples_; }  // in the part; the batches may use fewer
  int64_t num_batches() const { return num_batches_; }
  int64_t num_loss_tokens() const { return num_loss_tokens_; }  // of all batches
  Batch At(int64_t batch) const;

 private:
  int64_t SampleAt(int64_t sequence) const { return sequence * num_samples_ / num_sequences_; }

  const SampleSource& source_;
  int64_t sequences_per_batch_;
  int64_t num_samples_;
  int64_t num_sequences_;
  int64_t num_batches_;
  int64_t num_loss_tokens_ = 0;
};

}  // namespace trainyard
