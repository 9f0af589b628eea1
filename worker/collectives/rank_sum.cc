#include "worker/collectives/rank_sum.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

namespace trainyard {
namespace {

// The number of elements that are summed at a time: their sums fit into the first-level cache.
constexpr int64_t kBlock = 2048;

template <typename T, typename Sum>
void SumOf(const PartialSum& sum, std::byte* out, int64_t size) {
  Sum sums[kBlock];
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t count = std::min(kBlock, size - start);
    const T* first = reinterpret_cast<const T*>(sum.parts[0]) + start;
    if (sum.before == nullptr) {
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(first[i]);
    } else {
      const Sum* before = reinterpret_cast<const Sum*>(sum.before) + start;
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(before[i] + static_cast<Sum>(first[i]));
    }
    for (int part = 1; part < sum.num_parts; ++part) {
      const T* more = reinterpret_cast<const T*>(sum.parts[part]) + start;
      for (int64_t i = 0; i < count; ++i) sums[i] = static_cast<Sum>(sums[i] + static_cast<Sum>(more[i]));
    }
    if (sum.includes_last_rank) {
      T* to = reinterpret_cast<T*>(out) + start;
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(sums[i]);
    } else {
      std::copy_n(sums, count, reinterpret_cast<Sum*>(out) + start);
    }
  }
}

}  // namespace

at::ScalarType SumType(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type; }

bool SumInRankOrder(at::ScalarType type, const std::byte* const* parts, int num_parts, std::byte* out, int64_t size) {
  return ContinueSum({.type = type, .parts = parts, .num_parts = num_parts}, out, size);
}

bool ContinueSum(const PartialSum& sum, std::byte* out, int64_t size) {
  switch (sum.type) {
    case at::kFloat:
      SumOf<float, float>(sum, out, size);
      return true;
    case at::kDouble:
      SumOf<double, double>(sum, out, size);
      return true;
    case at::kBFloat16:
      SumOf<c10::BFloat16, float>(sum, out, size);
      return true;
    case at::kHalf:
      SumOf<c10::Half, float>(sum, out, size);
      return true;
    case at::kLong:  // unsigned, so that overflow wraps around
      SumOf<uint64_t, uint64_t>(sum, out, size);
      return true;
    case at::kInt:
      SumOf<uint32_t, uint32_t>(sum, out, size);
      return true;
    case at::kByte:
    case at::kChar:
      SumOf<uint8_t, uint8_t>(sum, out, size);
      return true;
    default:
      return false;
  }
}

}  // namespace trainyard
