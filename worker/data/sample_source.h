// Where the tokens of samples come from. TrainingData and EvaluationData (batches.h) decide which samples are used and
// in which order; a source knows what a sample contains. There are two: the bytes of text (byte_samples.h) and the
// token cache (token_samples.h).
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
  // Writes a sample: target i is the token that follows input i, or kNoTarget. REQUIRES: both spans hold length()
  // elements, and the sample exists.
  virtual void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const = 0;
  // The number of targets of a sample that are not kNoTarget.
  virtual int64_t LossTokens(DataPart part, int64_t sample) const = 0;
};

}  // namespace trainyard
