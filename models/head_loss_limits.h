// Decides which models compute the head and its loss a few rows at a time (worker/model/ops/head_loss.h), and therefore
// how much memory their scores need.
#pragma once

#include <cstdint>

namespace trainyard {

// The smallest vocabulary with which the head is computed a few rows at a time. The rule depends on the vocabulary
// alone, so that every layout of a job computes the same.
inline constexpr int64_t kHeadLossVocabulary = 8192;
// The most scores that are held at a time. Products of the size that suits a CPU leave a GPU idle most of the time.
inline constexpr int64_t kHeadLossElements = int64_t{1} << 22;
inline constexpr int64_t kHeadLossElementsOnGpu = int64_t{1} << 27;

}  // namespace trainyard
