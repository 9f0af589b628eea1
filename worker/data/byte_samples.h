// Samples of text with one token per byte, read directly from the files. Sample i of a part of the corpus is the
// length + 1 bytes that start at i x length: the first `length` of them are the inputs, the last `length` the targets,
// so that every byte except the first is predicted once per epoch.
//
// Does not own the corpus, which must outlive it. Immutable, so thread-safe.
#pragma once

#include "worker/data/corpus.h"
#include "worker/data/sample_source.h"

namespace trainyard {

class ByteSamples final : public SampleSource {
 public:
  ByteSamples(const Corpus& corpus, int64_t length) : corpus_(corpus), length_(length) {}

  int64_t length() const override { return length_; }
  int64_t num_samples(DataPart part) const override;
  void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const override;
  int64_t LossTokens(DataPart, int64_t) const override { return length_; }

 private:
  const Corpus& corpus_;
  const int64_t length_;
};

// The number of samples of `length` + 1 tokens in a stream of tokens where neighbours share one token.
int64_t SamplesInStream(int64_t num_tokens, int64_t length);

}  // namespace trainyard
