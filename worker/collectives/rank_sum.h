// Sums of what several ranks hold, in their order: the same ranks give the same bits, whatever the operation they are
// summed by and wherever in a tensor an element lies. 16-bit elements are added up in fp32 and rounded once.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace trainyard {

// out[i] = parts[0][i] + ... + parts[num_parts - 1][i] for `size` elements; `out` may be one of the parts. Types:
// floating point and integers, not bool. Returns false for another.
bool SumInRankOrder(at::ScalarType type, const std::byte* const* parts, int num_parts, std::byte* out, int64_t size);

}  // namespace trainyard
