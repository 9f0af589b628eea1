#include "worker/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trainyard {
namespace {

constexpr uint64_t kPeriodMax = uint64_t{1} << 18;  // `order_` then takes 2 MiB
// Making a period takes period x sources steps: at most a fraction of a second.
constexpr uint64_t kStepsMax = uint64_t{1} << 28;

// Whether every share is a multiple of 1 / period, except for rounding in the last digits.
bool Fits(absl::Span<const double> shares, uint64_t period) {
  return std::all_of(shares.begin(), shares.end(), [&](double share) {
    const double samples = share * static_cast<double>(period);
    return std::abs(samples - std::round(samples)) <= 1e-9 * samples && (share == 0 || std::round(samples) >= 1);
  });
}

// Rounds each positive share down to a multiple of 1 / period, but not to 0; the shares that lost most get the rest.
// Returns the multiples, whose sum may exceed `period`.
std::vector<uint32_t> Round(absl::Span<const double> shares, uint64_t period) {
  std::vector<uint32_t> rounded(shares.size());
  std::vector<double> lost(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    const double samples = shares[i] * static_cast<double>(period);
    rounded[i] = shares[i] == 0 ? 0 : std::max<uint32_t>(1, static_cast<uint32_t>(samples));
    lost[i] = shares[i] == 0 ? -static_cast<double>(period) : samples - rounded[i];
  }
  for (uint64_t sum = std::accumulate(rounded.begin(), rounded.end(), uint64_t{0}); sum < period; ++sum) {
    const size_t most = static_cast<size_t>(std::max_element(lost.begin(), lost.end()) - lost.begin());
    ++rounded[most];
    --lost[most];
  }
  return rounded;
}

}  // namespace

Blend::Blend(absl::Span<const double> weights) {
  // The weights are divided by the largest first, so that their sum is finite.
  const double largest = *std::max_element(weights.begin(), weights.end());
  std::vector<double> shares(weights.begin(), weights.end());
  for (double& share : shares) share /= largest;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;

  const uint64_t longest = std::min(kPeriodMax, kStepsMax / shares.size());
  uint64_t period = 1;
  while (period < longest && !Fits(shares, period)) ++period;
  shares_ = Round(shares, period);
  period = std::accumulate(shares_.begin(), shares_.end(), uint64_t{0});

  // The deficit in integers is share x samples so far - period x samples taken. As in Megatron-LM, the first sample is
  // chosen by the deficits after one sample, so the largest share begins.
  std::vector<uint32_t> taken(shares_.size());
  order_.reserve(period);
  for (uint64_t i = 0; i < period; ++i) {
    const int64_t samples = static_cast<int64_t>(std::max<uint64_t>(i, 1));
    size_t chosen = 0;
    int64_t largest_deficit = INT64_MIN;
    for (size_t k = 0; k < shares_.size(); ++k) {
      if (shares_[k] == 0) continue;  // a source without a share could win a tie of deficits of 0
      const int64_t deficit = shares_[k] * samples - static_cast<int64_t>(period) * taken[k];
      if (deficit > largest_deficit) chosen = k, largest_deficit = deficit;
    }
    order_.push_back({.source = static_cast<uint32_t>(chosen), .number = taken[chosen]++});
  }
}

Blend::Place Blend::At(uint64_t position) const {
  const Entry entry = order_[position % period()];
  return {.source = entry.source, .number = position / period() * shares_[entry.source] + entry.number};
}

uint64_t Blend::CountOf(size_t source, uint64_t num_samples) const {
  const auto rest = static_cast<ptrdiff_t>(num_samples % period());
  const auto in_rest =
      std::count_if(order_.begin(), order_.begin() + rest, [&](const Entry& entry) { return entry.source == source; });
  return num_samples / period() * shares_[source] + static_cast<uint64_t>(in_rest);
}

}  // namespace trainyard
