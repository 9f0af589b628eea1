// The order in which samples are trained on. It depends only on (seed, number of samples, epoch), never on ranks or
// steps. A position in it is the number of samples consumed so far, so a resumed run needs only this number to continue
// the order.
//
// An epoch is a permutation of the samples by a Feistel network, so any element of it is computed directly and nothing
// is stored. Pure; thread-safe.
#pragma once

#include <cstdint>

namespace trainyard {

class Sampler {
 public:
  // REQUIRES: num_samples >= 1.
  Sampler(uint64_t num_samples, uint64_t seed);

  // The sample at `position` of the endless order: element position % num_samples of epoch position / num_samples.
  // Every sample occurs once per epoch.
  uint64_t At(uint64_t position) const;

  uint64_t num_samples() const { return num_samples_; }

 private:
  uint64_t num_samples_;
  uint64_t seed_;
  int half_bits_;  // 2 x half_bits_ is the smallest even number of bits that can hold num_samples - 1
};

}  // namespace trainyard
