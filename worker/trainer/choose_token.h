// Chooses the next token of a text from the scores that a model gives to all tokens. Pure.
//
// As in transformers, the scores are divided by the temperature; then all but the `top_k` highest are removed; then
// those of the rest that are not needed for a probability of `top_p`. Heaps find the most likely tokens without sorting
// all of them, so the time usually grows linearly with the number of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace trainyard {

struct SamplingPolicy {
  double temperature = 1;  // 0: always the token with the highest score, the first one in a tie
  int64_t top_k = 0;       // 0: all tokens; tokens that tie with the last of the top k are included
  double top_p = 1;        // the most likely tokens that together have this probability, at least one; 1: all tokens
};

// `uniform`: a random number from 0 to below 1. Fails with InvalidArgument if a score is not a number, or if none is
// finite. REQUIRES: there is a score; temperature >= 0; top_k >= 0; 0 < top_p <= 1.
template <typename T>
absl::StatusOr<int64_t> ChooseToken(absl::Span<const T> scores, const SamplingPolicy& policy, double uniform);

extern template absl::StatusOr<int64_t> ChooseToken(absl::Span<const float>, const SamplingPolicy&, double);
extern template absl::StatusOr<int64_t> ChooseToken(absl::Span<const double>, const SamplingPolicy&, double);

}  // namespace trainyard
