#include "worker/data/sampler.h"

#include <bit>

namespace trainyard {
namespace {

constexpr int kRounds = 6;  // 4 already shuffle well; two more have no measurable cost

// SplitMix64's finisher: spreads every bit of its input over the output.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

Sampler::Sampler(uint64_t num_samples, uint64_t seed)
    : num_samples_(num_samples), seed_(seed), half_bits_((std::bit_width(num_samples - 1) + 1) / 2) {}

uint64_t Sampler::At(uint64_t position) const {
  uint64_t epoch = position / num_samples_, index = position % num_samples_;
  if (half_bits_ == 0) return 0;  // there is only one sample

  uint64_t key = Mix(Mix(seed_ + 0x9e3779b97f4a7c15u) ^ epoch);
  uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  // The Feistel network permutes the numbers below 4^half_bits_. A result that is not a sample is permuted again until
  // it is; different inputs still have different results. This takes at most 4 iterations on average, because
  // 4^half_bits_ is at most 4 x num_samples_.
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      uint64_t next = left ^ (Mix(right ^ Mix(key + round)) & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits_) | right;
  } while (index >= num_samples_);
  return index;
}

}  // namespace trainyard
