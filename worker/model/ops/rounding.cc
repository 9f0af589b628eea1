#include "worker/model/ops/rounding.h"

#include <immintrin.h>

#include "worker/numerics/element_bits.h"

namespace trainyard {
namespace {

// The last columns of a row, from `first` on.
template <typename T>
TRAINYARD_INLINE void RoundEnd(const RoundingPass<T>& pass, int64_t row, int64_t first) {
  for (int64_t i = first; i < pass.columns; ++i) {
    float sum = pass.sums[row * pass.columns + i];
    if (pass.bias != nullptr) sum += ToFloat(BitsOf(pass.bias)[i]);
    if (pass.residual != nullptr) sum += ToFloat(BitsOf(pass.residual)[row * pass.columns + i]);
    StoreNearest(sum, BitsOf(pass.to) + row * pass.columns + i);
  }
}

template <typename T>
TRAINYARD_INLINE void Rows(const RoundingPass<T>& pass) {
  for (int64_t row = 0; row < pass.rows; ++row) {
    const int64_t start = row * pass.columns;
    const float* sums = pass.sums + start;
    const auto* bias = BitsOf(pass.bias);
    const auto* residual = pass.residual == nullptr ? nullptr : BitsOf(pass.residual) + start;
    auto* to = BitsOf(pass.to) + start;
    int64_t i = 0;
    for (; i + kLanes <= pass.columns; i += kLanes) {
      Floats sum = LoadLanes(sums + i);
      if (bias != nullptr) sum += LoadLanes(bias + i);
      if (residual != nullptr) sum += LoadLanes(residual + i);
      StoreLanes(sum, to + i);
    }
    RoundEnd(pass, row, i);
  }
}

// With AVX2 the conversions are written out: the compiler packs 32-bit numbers into 16 bits slowly.
#define TRAINYARD_INLINE_AVX2 inline __attribute__((always_inline, target("avx2,fma,f16c")))
TRAINYARD_INLINE_AVX2 __m256 Load8(const HalfBits* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
TRAINYARD_INLINE_AVX2 __m256 Load8(const uint16_t* from) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
TRAINYARD_INLINE_AVX2 void Store8(__m256 values, HalfBits* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
// Rounds like StoreLanes.
TRAINYARD_INLINE_AVX2 void Store8(__m256 values, uint16_t* to) {
  const __m256i bits = _mm256_castps_si256(values), one = _mm256_set1_epi32(1);
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(_mm256_srli_epi32(bits, 16), one));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i kept = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0b1000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

// The same loop for three kinds of CPU.
template <typename T>
TRAINYARD_AVX512 void RowsAvx512(const RoundingPass<T>& pass) {
  Rows(pass);
}
template <typename T>
TRAINYARD_AVX2 void RowsAvx2(const RoundingPass<T>& pass) {
  for (int64_t row = 0; row < pass.rows; ++row) {
    const int64_t start = row * pass.columns;
    int64_t i = 0;
    for (; i + 8 <= pass.columns; i += 8) {
      __m256 sum = _mm256_loadu_ps(pass.sums + start + i);
      if (pass.bias != nullptr) sum = _mm256_add_ps(sum, Load8(BitsOf(pass.bias + i)));
      if (pass.residual != nullptr) sum = _mm256_add_ps(sum, Load8(BitsOf(pass.residual + start + i)));
      Store8(sum, BitsOf(pass.to + start + i));
    }
    RoundEnd(pass, row, i);
  }
}
template <typename T>
void RowsAny(const RoundingPass<T>& pass) {
  Rows(pass);
}

}  // namespace

template <typename T>
void RoundRows(const RoundingPass<T>& pass) {
  static const auto run = ForCpu(RowsAvx512<T>, RowsAvx2<T>, RowsAny<T>);
  run(pass);
}
template void RoundRows<c10::BFloat16>(const RoundingPass<c10::BFloat16>&);
template void RoundRows<c10::Half>(const RoundingPass<c10::Half>&);

}  // namespace trainyard
