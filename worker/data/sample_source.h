// Provides the content of samples; TrainingData and EvaluationData (batches.h) decide which samples are used and in
// which order. There are three kinds of sources: the bytes of text (byte_samples.h), tokens of the cache or of files
// (token_samples.h), and rows of CSV files, whose inputs are features in place of tokens (csv_samples.h).
//
// Immutable, so thread-safe.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace trainyard {

enum class DataPart { kTraining, kEvaluation };

// A target without loss: the loss ignores it, and no divisor counts it.
inline constexpr int64_t kNoTarget = -1;

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // The number of tokens of a sample.
  virtual int64_t length() const = 0;
  virtual int64_t num_samples(DataPart part) const = 0;
  // Whether documents are separate: attention does not cross their ends, and no target is a token of another document.
  virtual bool separates_documents() const = 0;
  // Writes a sample: target i is the token that follows input i, or kNoTarget. If documents are separate, start i is
  // the position where the document of input i begins; padding after the last document is a document without targets.
  // REQUIRES: the sample exists; the spans hold length() elements, but `starts` is empty if documents are not separate.
  virtual void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                    absl::Span<int64_t> starts) const = 0;
  // The number of targets of a sample that are not kNoTarget.
  virtual int64_t LossTokens(DataPart part, int64_t sample) const = 0;
};

// For samples of a stream: writes the starts, given the positions after 0 at which documents begin, in ascending order,
// and removes the targets that are the first tokens of these documents.
void SeparateDocuments(absl::Span<const int64_t> begins, absl::Span<int64_t> targets, absl::Span<int64_t> starts);

}  // namespace trainyard
