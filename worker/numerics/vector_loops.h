// Building blocks for loops over fp32 memory, 16 numbers at a time whatever registers the CPU has: the compiler splits
// such a vector into as many registers as needed. For files that are compiled with -O3 -fno-trapping-math
// -fno-math-errno -Wno-psabi. Everything is inlined, so that it uses the instructions of the calling function
// (TRAINYARD_AVX512, TRAINYARD_AVX2, none), among which ForCpu chooses.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "worker/numerics/cpu.h"
#include "worker/numerics/sixteen_bit.h"

#define TRAINYARD_INLINE inline __attribute__((always_inline))
#define TRAINYARD_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")))
#define TRAINYARD_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace trainyard {

inline constexpr int64_t kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

TRAINYARD_INLINE Floats LoadLanes(const float* from) {
  Floats lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}
TRAINYARD_INLINE void StoreLanes(Floats lanes, float* to) { std::memcpy(to, &lanes, sizeof lanes); }
// bf16, as bit patterns.
TRAINYARD_INLINE Floats LoadLanes(const uint16_t* from) {
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  return std::bit_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}
// Rounds to nearest, ties to even.
TRAINYARD_INLINE void StoreLanes(Floats lanes, uint16_t* to) {
  const Words bits = std::bit_cast<Words>(lanes);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words kept = (bits & 0x7fffffffu) > 0x7f800000u ? Words{} + 0x7fc0u : rounded;  // NaN stays NaN
  const Halves halves = __builtin_convertvector(kept, Halves);
  std::memcpy(to, &halves, sizeof halves);
}
// fp16. Exact: the exponent is changed by a product with a power of two, which also normalises small numbers.
TRAINYARD_INLINE Floats LoadLanes(const HalfBits* from) {
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  const Words wide = __builtin_convertvector(bits, Words);
  const Words sign = (wide & 0x8000u) << 16, shifted = (wide & 0x7fffu) << 13;
  const Words scaled = std::bit_cast<Words>(std::bit_cast<Floats>(shifted) * 0x1p112f);
  const Words special = (wide & 0x7c00u) == 0x7c00u ? Words{} + 0x7f800000u : Words{};  // infinite, or not a number
  return std::bit_cast<Floats>(sign | scaled | special);
}
// Rounds to nearest, ties to even; beyond the range of fp16: to infinity. The sum with a power of two that depends on
// the exponent leaves exactly the bits that fp16 has.
TRAINYARD_INLINE void StoreLanes(Floats lanes, HalfBits* to) {
  const Words bits = std::bit_cast<Words>(lanes), magnitude = bits & 0x7fffffffu;
  const Floats scaled = std::bit_cast<Floats>(magnitude) * 0x1p112f * 0x1p-110f;
  const Words exponent = (magnitude << 1) & 0xff000000u;
  const Words smallest = exponent < 0x71000000u ? Words{} + 0x71000000u : exponent;
  const Words sum = std::bit_cast<Words>(std::bit_cast<Floats>((smallest >> 1) + 0x07800000u) + scaled);
  const Words rounded = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
  const Words kept = magnitude > 0x7f800000u ? Words{} + 0x7e00u : rounded;  // NaN stays NaN
  const Halves halves = __builtin_convertvector(kept | ((bits >> 16) & 0x8000u), Halves);
  std::memcpy(to, &halves, sizeof halves);
}
TRAINYARD_INLINE Floats AllLanes(float value) { return Floats{} + value; }
TRAINYARD_INLINE Floats MaxLanes(Floats a, Floats b) { return a > b ? a : b; }

TRAINYARD_INLINE float SumAcrossLanes(Floats lanes) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += lanes[lane];
  return sum;
}
TRAINYARD_INLINE float MaxAcrossLanes(Floats lanes) {
  float highest = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) highest = highest > lanes[lane] ? highest : lanes[lane];
  return highest;
}

// e^x for x in [-87, 87], with a relative error of about 1e-7: 2^n times a polynomial in the remainder, which is at
// most half of ln 2 (Cephes' expf).
TRAINYARD_INLINE Floats ExpLanes(Floats x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: adding it leaves no bits for a fraction
  const Floats n = (x * kLog2E + kRound) - kRound;
  const Floats r = (x - n * kLn2High) - n * kLn2Low;
  Floats p = AllLanes(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<Floats>((__builtin_convertvector(n, Ints) + 127) << 23);
}

// For fewer elements than a vector has lanes: the other lanes are 0 and are not stored.
template <typename T>
TRAINYARD_INLINE Floats LoadFirstLanes(const T* from, int64_t size) {
  T all[kLanes] = {};
  std::memcpy(all, from, static_cast<size_t>(size) * sizeof(T));
  return LoadLanes(all);
}
template <typename T>
TRAINYARD_INLINE void StoreFirstLanes(Floats lanes, T* to, int64_t size) {
  T all[kLanes];
  StoreLanes(lanes, all);
  std::memcpy(to, all, static_cast<size_t>(size) * sizeof(T));
}

}  // namespace trainyard
