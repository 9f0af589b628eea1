#include "worker/data/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace trainyard {
namespace {

// Fills a batch with the samples that start at start(0), start(1), ...
Batch MakeBatch(const Corpus& corpus, int64_t context, int64_t num_sequences,
                const std::function<int64_t(int64_t)>& start) {
  Batch batch{.inputs = at::empty({num_sequences, context}, at::kLong),
              .targets = at::empty({num_sequences, context}, at::kLong)};
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  std::vector<uint8_t> bytes(context + 1);
  for (int64_t i = 0; i < num_sequences; ++i) {
    corpus.Read(start(i), absl::MakeSpan(bytes));
    std::copy(bytes.begin(), bytes.end() - 1, inputs + i * context);
    std::copy(bytes.begin() + 1, bytes.end(), targets + i * context);
  }
  return batch;
}

int64_t SamplesIn(int64_t num_bytes, int64_t context) { return num_bytes < 1 ? 0 : (num_bytes - 1) / context; }

}  // namespace

TrainingData::TrainingData(const Corpus& corpus, int64_t context, uint64_t seed, int64_t max_samples)
    : corpus_(corpus),
      context_(context),
      sampler_(std::min(SamplesIn(corpus.num_train_bytes(), context), max_samples), seed) {}

Batch TrainingData::At(uint64_t position, int64_t num_sequences) const {
  return MakeBatch(corpus_, context_, num_sequences, [&](int64_t i) {
    return static_cast<int64_t>(sampler_.At(position + static_cast<uint64_t>(i))) * context_;
  });
}

EvaluationData::EvaluationData(const Corpus& corpus, int64_t context, int64_t num_batches, int64_t sequences_per_batch,
                               int64_t max_samples)
    : corpus_(corpus), context_(context), sequences_per_batch_(sequences_per_batch) {
  num_samples_ = std::min(SamplesIn(corpus.num_validation_bytes(), context), max_samples);
  num_sequences_ = std::min(num_samples_, num_batches * sequences_per_batch);
  num_batches_ = (num_sequences_ + sequences_per_batch - 1) / sequences_per_batch;
}

Batch EvaluationData::At(int64_t batch) const {
  int64_t first = batch * sequences_per_batch_;
  int64_t count = std::min(sequences_per_batch_, num_sequences_ - first);
  return MakeBatch(corpus_, context_, count, [&](int64_t i) {
    int64_t sample = (first + i) * num_samples_ / num_sequences_;
    return corpus_.num_train_bytes() + sample * context_;
  });
}

}  // namespace trainyard
