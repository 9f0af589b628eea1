// The order in which a blend takes samples from its sources: each sample comes from the source that has the largest
// deficit, as in Megatron-LM. The deficit of a source is its share of the samples so far, less the samples that were
// taken from it; the first source wins a tie. So every source stays close to its share: with ten sources, none is more
// than about two samples short.
//
// If all shares are multiples of 1 / n, the order repeats after n samples, because by then each source has exactly its
// share. A source cannot get more, because it would have to be chosen while its deficit is negative, and the largest
// deficit is never negative: the deficits add up to zero. The shares are therefore rounded to such multiples, and one
// period is stored, from which any position of the endless order is computed directly.
//
// Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace trainyard {

class Blend {
 public:
  // REQUIRES: there is at least one weight, none is negative or infinite, and their sum is positive. Weights whose
  // ratios need too long a period are rounded; each positive one keeps at least one sample of a period.
  explicit Blend(absl::Span<const double> weights);

  struct Place {
    size_t source = 0;
    uint64_t number = 0;  // of the samples of this source, from 0
  };
  // The sample at `position` of the endless order.
  Place At(uint64_t position) const;
  // The samples of a source among the first `num_samples`.
  uint64_t CountOf(size_t source, uint64_t num_samples) const;

  size_t num_sources() const { return shares_.size(); }
  uint64_t period() const { return order_.size(); }

 private:
  struct Entry {
    uint32_t source = 0;
    uint32_t number = 0;  // of this source's samples in the period
  };

  std::vector<uint32_t> shares_;  // samples of each source in a period
  std::vector<Entry> order_;
};

}  // namespace trainyard
