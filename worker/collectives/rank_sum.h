// Sums of what several ranks hold, in their order: the same ranks give the same bits, whatever the operation they are
// summed by and wherever in a tensor an element lies. 16-bit elements are added up in fp32 and rounded once.
//
// [Note: one order of sums] Every reduction adds up what the ranks of a group hold in the order of their numbers, on
// every transport and wherever the ranks are, so that moving a job between hosts changes no bit of it:
//
//   shared memory   each rank sums a share of a piece, all ranks' contributions at once
//   gloo            each rank gets its part of every other's and sums it (all-to-all); an all-reduce then gathers the
//                   sums, and sends as many bytes as a ring does. Two ranks have one order only and leave it to gloo
//   both            the sum goes from place to place, each adding its ranks in turn (place_chain.h)
//
// Not so between GPUs: NCCL sums as the links between them suggest.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace trainyard {

// out[i] = parts[0][i] + ... + parts[num_parts - 1][i] for `size` elements; `out` may be one of the parts. Types:
// floating point and integers, not bool. Returns false for another.
bool SumInRankOrder(at::ScalarType type, const std::byte* const* parts, int num_parts, std::byte* out, int64_t size);

// In which sums of `type` are made: fp32 for 16 bits, else itself.
at::ScalarType SumType(at::ScalarType type);

// A sum of which these parts are only some: `before`, of SumType, holds the ranks before them, or is null. The result
// is of SumType; where the last part is the last rank's, `ends`, it is rounded to `type`.
struct PartialSum {
  at::ScalarType type = at::kFloat;
  const std::byte* before = nullptr;
  const std::byte* const* parts = nullptr;
  int num_parts = 0;  // one or more
  bool ends = true;
};
// As above; `out` may be `before`.
bool ContinueSum(const PartialSum& sum, std::byte* out, int64_t size);

}  // namespace trainyard
