// The order in which samples are trained on. It depends only on (seed, epoch), never on ranks or steps, and the
// position in it is one number, the samples consumed so far: that number in a checkpoint is all a resumed run needs.
//
// An epoch is a permutation of the samples by a Feistel network, so any place of it can be asked for at once and
// nothing is kept in memory. Pure; thread-safe.
#pragma once

#include <cstdint>

namespace trainyard {

class Sampler {
 public:
  // REQUIRES: num_samples >= 1.
  Sampler(uint64_t num_samples, uint64_t seed);

  // The sample at `position` of the endless order: epoch position / num_samples, place position % num_samples in it.
  // Every sample comes once an epoch.
  uint64_t At(uint64_t position) const;

  uint64_t num_samples() const { return num_samples_; }

 private:
  uint64_t num_samples_;
  uint64_t seed_;
  int half_bits_;  // the network works on 2 x half_bits_ bits, the least that hold num_samples - 1
};

}  // namespace trainyard
