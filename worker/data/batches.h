// Makes batches of tensors from the samples of sources, and decides which samples are used and in which order.
//
// The classes do not own the sources, which must outlive them. Immutable, so thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/blend.h"
#include "worker/data/sample_source.h"
#include "worker/data/sampler.h"

namespace trainyard {

// Tensors of int64 with the shape [sequences, tokens].
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;       // kNoTarget: no loss
  at::Tensor starts = {};   // where each token's document begins; undefined if documents are not separate
  int64_t loss_tokens = 0;  // the number of targets that are not kNoTarget
};

// A source, of which the first `max_samples` samples of a part are used. If the ranks see different numbers of samples,
// all of them use the smallest number.
struct LimitedSource {
  const SampleSource* source = nullptr;
  int64_t max_samples = INT64_MAX;

  int64_t num_samples(DataPart part) const;
};

struct SampleNumber {
  const SampleSource* source = nullptr;
  int64_t number = 0;
};

// Samples of the training parts, in an endless order. With several sources, a blend decides from which one each sample
// comes, and each source has a shuffled endless order of its own. The order depends on (seed, weights, numbers of
// samples) only, and a position in it is one number.
class TrainingData {
 public:
  // `weights`: one for each source; empty if there is one source. REQUIRES: each source with a positive weight has a
  // training sample.
  TrainingData(std::vector<LimitedSource> sources, const std::vector<double>& weights, uint64_t seed);
  TrainingData(const SampleSource& source, uint64_t seed) : TrainingData({{.source = &source}}, {}, seed) {}

  // Samples [position, position + num_sequences) of the endless order.
  Batch At(uint64_t position, int64_t num_sequences) const;
  // The number of targets with loss in the batch At(position, num_sequences). For all samples of a step, this is the
  // divisor of the step's gradient. Every rank counts without communication, and finds the same number.
  uint64_t LossTokens(uint64_t position, int64_t num_sequences) const;

  uint64_t num_samples() const;  // of all sources
  std::vector<int64_t> samples_by_source() const;
  // How often each sample of a source is used, on average, in the first `num_samples` samples.
  double Epochs(size_t source, uint64_t num_samples) const;

 private:
  SampleNumber SampleAt(uint64_t position) const;

  std::vector<LimitedSource> sources_;
  std::vector<std::optional<Sampler>> samplers_;  // none: the source has no sample, and no weight
  std::optional<Blend> blend_;                    // none: there is one source
};

// Fixed micro-batches of samples that are spread evenly over the validation parts of all sources. They do not depend on
// the number of ranks.
class EvaluationData {
 public:
  // There are fewer batches than `num_batches` if the parts do not hold enough samples; the last one may be short.
  EvaluationData(std::vector<LimitedSource> sources, int64_t num_batches, int64_t sequences_per_batch);
  EvaluationData(const SampleSource& source, int64_t num_batches, int64_t sequences_per_batch)
      : EvaluationData(std::vector<LimitedSource>{{.source = &source}}, num_batches, sequences_per_batch) {}

  int64_t num_samples() const { return num_samples_; }  // in the parts; the batches may use fewer
  int64_t num_batches() const { return num_batches_; }
  int64_t num_loss_tokens() const { return num_loss_tokens_; }  // of all batches
  Batch At(int64_t batch) const;
  // A hash of all tokens and targets, the same however they are divided into batches. Reads all of them.
  std::string ContentHash() const;

 private:
  // The sample that is number `sequence` of those that the batches use.
  SampleNumber SampleAt(int64_t sequence) const;

  std::vector<LimitedSource> sources_;
  int64_t sequences_per_batch_;
  int64_t num_samples_ = 0;
  int64_t num_sequences_;
  int64_t num_batches_;
  int64_t num_loss_tokens_ = 0;
};

}  // namespace trainyard
