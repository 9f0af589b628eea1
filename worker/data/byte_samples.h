// Samples of text with one token per byte, read directly from the files of one group (Corpus::Group). Sample i of a
// part of the group, for training or for evaluation (DataPart), is the length + 1 bytes that start at i x length: the
// first `length` of them are the inputs, the last `length` the targets, so that every byte except the first is
// predicted once per epoch. A file is a document.
//
// Does not own the corpus, which must outlive it. Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/corpus.h"
#include "worker/data/sample_source.h"

namespace trainyard {

class ByteSamples final : public SampleSource {
 public:
  // REQUIRES: group < corpus.groups().size().
  ByteSamples(const Corpus& corpus, int64_t length, size_t group = 0, bool separate_documents = false);

  int64_t length() const override { return length_; }
  int64_t num_samples(DataPart part) const override;
  bool separates_documents() const override { return separate_documents_; }
  void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
            absl::Span<int64_t> starts) const override;
  int64_t LossTokens(DataPart part, int64_t sample) const override;

 private:
  int64_t FirstByte(DataPart part, int64_t sample) const;
  // Where files begin after the first byte of a sample, up to its last target.
  absl::Span<const int64_t> FilesIn(int64_t first_byte) const;

  const Corpus& corpus_;
  const Corpus::Group group_;
  const int64_t length_;
  const bool separate_documents_;
  std::vector<int64_t> file_begins_;  // among the bytes of all groups; only for separate documents
};

// The number of samples of `length` + 1 tokens in a stream of tokens in which consecutive samples share one token.
int64_t SamplesInStream(int64_t num_tokens, int64_t length);

}  // namespace trainyard
