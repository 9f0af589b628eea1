#include "worker/data/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "absl/functional/function_ref.h"

namespace trainyard {
namespace {

// Fills a batch with the samples sample(0), sample(1), ... of a part.
Batch MakeBatch(const SampleSource& source, DataPart part, int64_t num_sequences,
                absl::FunctionRef<int64_t(int64_t)> sample) {
  const int64_t length = source.length();
  Batch batch{.inputs = at::empty({num_sequences, length}, at::kLong),
              .targets = at::empty({num_sequences, length}, at::kLong)};
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  const size_t count = static_cast<size_t>(length);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const int64_t number = sample(i);
    source.Read(part, number, absl::MakeSpan(inputs + i * length, count), absl::MakeSpan(targets + i * length, count));
    batch.loss_tokens += source.LossTokens(part, number);
  }
  return batch;
}

}  // namespace

TrainingData::TrainingData(const SampleSource& source, uint64_t seed, int64_t max_samples)
    : source_(source),
      sampler_(static_cast<uint64_t>(std::min(source.num_samples(DataPart::kTraining), max_samples)), seed) {}

Batch TrainingData::At(uint64_t position, int64_t num_sequences) const {
  return MakeBatch(source_, DataPart::kTraining, num_sequences,
                   [&](int64_t i) { return static_cast<int64_t>(sampler_.At(position + static_cast<uint64_t>(i))); });
}

uint64_t TrainingData::LossTokens(uint64_t position, int64_t num_sequences) const {
  uint64_t count = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_sequences); ++i) {
    const int64_t sample = static_cast<int64_t>(sampler_.At(position + i));
    count += static_cast<uint64_t>(source_.LossTokens(DataPart::kTraining, sample));
  }
  return count;
}

EvaluationData::EvaluationData(const SampleSource& source, int64_t num_batches, int64_t sequences_per_batch,
                               int64_t max_samples)
    : source_(source), sequences_per_batch_(sequences_per_batch) {
  num_samples_ = std::min(source.num_samples(DataPart::kEvaluation), max_samples);
  num_sequences_ = std::min(num_samples_, num_batches * sequences_per_batch);
  num_batches_ = (num_sequences_ + sequences_per_batch - 1) / sequences_per_batch;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    num_loss_tokens_ += source.LossTokens(DataPart::kEvaluation, SampleAt(i));
  }
}

Batch EvaluationData::At(int64_t batch) const {
  const int64_t first = batch * sequences_per_batch_;
  const int64_t count = std::min(sequences_per_batch_, num_sequences_ - first);
  return MakeBatch(source_, DataPart::kEvaluation, count, [&](int64_t i) { return SampleAt(first + i); });
}

}  // namespace trainyard
