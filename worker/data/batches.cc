#include "worker/data/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace trainyard {
namespace {

// Fills a batch with the samples sample(0), sample(1), ... of a part.
Batch MakeBatch(DataPart part, const SampleSource& any_source, int64_t num_sequences,
                absl::FunctionRef<SampleNumber(int64_t)> sample) {
  const int64_t length = any_source.length();
  const bool separate = any_source.separates_documents();
  Batch batch{.inputs = at::empty({num_sequences, length}, at::kLong),
              .targets = at::empty({num_sequences, length}, at::kLong)};
  int64_t* inputs = batch.inputs.mutable_data_ptr<int64_t>();
  int64_t* targets = batch.targets.mutable_data_ptr<int64_t>();
  int64_t* starts = nullptr;
  if (separate) {
    batch.starts = at::empty({num_sequences, length}, at::kLong);
    starts = batch.starts.mutable_data_ptr<int64_t>();
  }
  const size_t count = static_cast<size_t>(length);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const auto [source, number] = sample(i);
    source->Read(part, number, absl::MakeSpan(inputs + i * length, count), absl::MakeSpan(targets + i * length, count),
                 separate ? absl::MakeSpan(starts + i * length, count) : absl::Span<int64_t>());
    batch.loss_tokens += source->LossTokens(part, number);
  }
  return batch;
}

}  // namespace

int64_t LimitedSource::num_samples(DataPart part) const { return std::min(source->num_samples(part), max_samples); }

TrainingData::TrainingData(std::vector<LimitedSource> sources, const std::vector<double>& weights, uint64_t seed)
    : sources_(std::move(sources)) {
  if (!weights.empty()) blend_.emplace(weights);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto count = static_cast<uint64_t>(sources_[i].num_samples(DataPart::kTraining));
    std::optional<Sampler>& sampler = samplers_.emplace_back();
    // Sources of the same size have different orders.
    if (count > 0) sampler.emplace(count, seed + i);
  }
}

SampleNumber TrainingData::SampleAt(uint64_t position) const {
  const Blend::Place place = blend_.has_value() ? blend_->At(position) : Blend::Place{.number = position};
  return {.source = sources_[place.source].source,
          .number = static_cast<int64_t>(samplers_[place.source]->At(place.number))};
}

Batch TrainingData::At(uint64_t position, int64_t num_sequences) const {
  return MakeBatch(DataPart::kTraining, *sources_[0].source, num_sequences,
                   [&](int64_t i) { return SampleAt(position + static_cast<uint64_t>(i)); });
}

uint64_t TrainingData::LossTokens(uint64_t position, int64_t num_sequences) const {
  uint64_t count = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_sequences); ++i) {
    const auto [source, number] = SampleAt(position + i);
    count += static_cast<uint64_t>(source->LossTokens(DataPart::kTraining, number));
  }
  return count;
}

uint64_t TrainingData::num_samples() const {
  uint64_t count = 0;
  for (const std::optional<Sampler>& sampler : samplers_) count += sampler.has_value() ? sampler->num_samples() : 0;
  return count;
}

std::vector<int64_t> TrainingData::samples_by_source() const {
  std::vector<int64_t> counts;
  for (const LimitedSource& source : sources_) counts.push_back(source.num_samples(DataPart::kTraining));
  return counts;
}

double TrainingData::Epochs(size_t source, uint64_t num_samples) const {
  if (!samplers_[source].has_value()) return 0;
  const uint64_t used = blend_.has_value() ? blend_->CountOf(source, num_samples) : num_samples;
  return static_cast<double>(used) / static_cast<double>(samplers_[source]->num_samples());
}

EvaluationData::EvaluationData(std::vector<LimitedSource> sources, int64_t num_batches, int64_t sequences_per_batch)
    : sources_(std::move(sources)), sequences_per_batch_(sequences_per_batch) {
  for (const LimitedSource& source : sources_) num_samples_ += source.num_samples(DataPart::kEvaluation);
  num_sequences_ = std::min(num_samples_, num_batches * sequences_per_batch);
  num_batches_ = (num_sequences_ + sequences_per_batch - 1) / sequences_per_batch;
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const auto [source, number] = SampleAt(i);
    num_loss_tokens_ += source->LossTokens(DataPart::kEvaluation, number);
  }
}

SampleNumber EvaluationData::SampleAt(int64_t sequence) const {
  int64_t number = sequence * num_samples_ / num_sequences_;
  const LimitedSource* source = sources_.data();
  for (; number >= source->num_samples(DataPart::kEvaluation); ++source) {
    number -= source->num_samples(DataPart::kEvaluation);
  }
  return {.source = source->source, .number = number};
}

Batch EvaluationData::At(int64_t batch) const {
  const int64_t first = batch * sequences_per_batch_;
  const int64_t count = std::min(sequences_per_batch_, num_sequences_ - first);
  return MakeBatch(DataPart::kEvaluation, *sources_[0].source, count, [&](int64_t i) { return SampleAt(first + i); });
}

std::string EvaluationData::ContentHash() const {
  Hasher inputs, targets, starts;
  const auto add = [](const at::Tensor& tensor, Hasher& hasher) {
    if (!tensor.defined()) return;
    const at::Tensor whole = tensor.contiguous();
    hasher.Add({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
  };
  for (int64_t i = 0; i < num_batches_; ++i) {
    const Batch batch = At(i);
    add(batch.inputs, inputs);
    add(batch.targets, targets);
    add(batch.starts, starts);
  }
  return HashHex(absl::StrCat(inputs.Hex(), targets.Hex(), starts.Hex()));
}

}  // namespace trainyard
