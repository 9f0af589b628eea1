// Sums of several ranks' values in rank order: the same ranks give the same bits, whatever the operation and wherever
// in a tensor an element is. 16-bit elements are summed in fp32 and rounded once.
//
// [Note: one order of sums] Every reduction adds the values of a group's ranks in rank order, on every transport and
// wherever the ranks run. So moving a job between hosts changes no bit of its results:
//
//   shared memory   each rank sums a share of a piece, from all ranks' contributions together
//   gloo            each rank receives its part from every other rank and sums it (all-to-all); an all-reduce then
//                   gathers the sums, and sends as many bytes as a ring does. With two ranks there is only one order,
//                   so an all-reduce is gloo's own
//   both            the sum travels from place to place, and each place adds its ranks' values to it (place_chain.h)
//
// This does not hold between GPUs: NCCL chooses the order by the links between them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace trainyard {

// out[i] = parts[0][i] + ... + parts[num_parts - 1][i] for `size` elements; `out` may be one of the parts. Supports
// floating-point and integer types, not bool. Returns false for an unsupported type.
bool SumInRankOrder(at::ScalarType type, const std::byte* const* parts, int num_parts, std::byte* out, int64_t size);

// The type in which values of `type` are summed: fp32 for 16-bit types, otherwise `type` itself.
at::ScalarType SumType(at::ScalarType type);

// A sum over ranks that is continued: `parts` are the values of the next ranks, and `before`, of type SumType, is the
// sum of the ranks before them, or null. The result has type SumType; if `includes_last_rank`, it is rounded to `type`.
struct PartialSum {
  at::ScalarType type = at::kFloat;
  const std::byte* before = nullptr;
  const std::byte* const* parts = nullptr;
  int num_parts = 0;  // at least one
  bool includes_last_rank = true;
};
// Adds the parts. Returns false for the types that SumInRankOrder does not support. `out` may be `before`.
bool ContinueSum(const PartialSum& sum, std::byte* out, int64_t size);

}  // namespace trainyard
