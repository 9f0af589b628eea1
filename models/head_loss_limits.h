// Decides which models compute the head and its loss a few rows at a time (worker/model/ops/head_loss.h), and therefore
// how much memory their scores need.
#pragma once

#include <cstdint>

namespace trainyard {

// Models with at least this many tokens in their vocabulary do this. The rule depends on the vocabulary alone, so that
// every layout of a job computes the same.
inline constexpr int64_t kHeadLossVocabulary = 8192;
// The most scores that are held at a time. A GPU needs larger products than a CPU to be busy, and more than 100 times
// fewer launches.
inline constexpr int64_t kHeadLossElements = int64_t{1} << 22;
inline constexpr int64_t kHeadLossElementsOnGpu = int64_t{1} << 27;

}  // namespace trainyard
