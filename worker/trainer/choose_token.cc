#include "worker/trainer/choose_token.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// A token that may be chosen.
struct Candidate {
  double weight;  // e^((score - highest score) / temperature)
  int64_t token;
};
// The order of a heap whose first element is the most likely one; of equal ones, the lowest token.
bool IsLess(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

// The `k`-th highest score, through a heap of the k highest so far.
template <typename T>
T KthHighest(absl::Span<const T> scores, size_t k) {
  std::vector<T> highest(scores.begin(), scores.begin() + static_cast<ptrdiff_t>(k));
  std::make_heap(highest.begin(), highest.end(), std::greater<T>());
  for (const T score : scores.subspan(k)) {
    if (score <= highest.front()) continue;
    std::pop_heap(highest.begin(), highest.end(), std::greater<T>());
    highest.back() = score;
    std::push_heap(highest.begin(), highest.end(), std::greater<T>());
  }
  return highest.front();
}

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// Keeps the most likely candidates that together have the probability `top_p`.
void KeepMostLikely(double top_p, std::vector<Candidate>& candidates) {
  const double enough = top_p * TotalWeight(candidates);
  std::make_heap(candidates.begin(), candidates.end(), IsLess);
  double kept = 0;
  auto heap_end = candidates.end();
  // A token stays if the more likely tokens together do not reach the probability.
  while (heap_end != candidates.begin() && kept < enough) {
    kept += candidates.front().weight;
    std::pop_heap(candidates.begin(), heap_end--, IsLess);
  }
  candidates.erase(candidates.begin(), heap_end);
}

// Draws a candidate with a probability proportional to its weight. Does not use std::discrete_distribution, whose
// draws differ between implementations.
int64_t Draw(const std::vector<Candidate>& candidates, double uniform) {
  double remaining = uniform * TotalWeight(candidates);
  int64_t chosen = -1;
  for (const Candidate& candidate : candidates) {
    chosen = candidate.token;
    remaining -= candidate.weight;
    if (remaining < 0) break;
  }
  return chosen;
}

// The first token with the highest score.
template <typename T>
absl::StatusOr<size_t> FindBest(absl::Span<const T> scores) {
  size_t best = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model's score of token ", i, " is not a number: the weights are damaged, or a value overflows"));
    }
    if (scores[i] > scores[best]) best = i;
  }
  if (!std::isfinite(scores[best])) {
    return absl::InvalidArgumentError(absl::StrCat("the highest of the model's scores is ", scores[best],
                                                   ": the weights are damaged, or a value overflows"));
  }
  return best;
}

}  // namespace

template <typename T>
absl::StatusOr<int64_t> ChooseToken(absl::Span<const T> scores, const SamplingPolicy& policy, double uniform) {
  ASSIGN_OR_RETURN(const size_t best, FindBest(scores));
  if (policy.temperature == 0) return static_cast<int64_t>(best);
  const size_t top_k = static_cast<size_t>(policy.top_k);
  const T lowest = top_k > 0 && top_k < scores.size() ? KthHighest(scores, top_k) : -std::numeric_limits<T>::infinity();
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] < lowest) continue;
    const double weight = std::exp(static_cast<double>(scores[i] - scores[best]) / policy.temperature);
    if (weight > 0) candidates.push_back({weight, static_cast<int64_t>(i)});
  }
  if (policy.top_p < 1) KeepMostLikely(policy.top_p, candidates);
  return Draw(candidates, uniform);
}

template absl::StatusOr<int64_t> ChooseToken(absl::Span<const float>, const SamplingPolicy&, double);
template absl::StatusOr<int64_t> ChooseToken(absl::Span<const double>, const SamplingPolicy&, double);

}  // namespace trainyard
