// Conversions of 16-bit numbers as bit patterns, for loops that the compiler vectorises.
#pragma once

#include <c10/util/Half.h>

#include <bit>
#include <cstdint>

namespace trainyard {

inline __attribute__((always_inline)) float Bfloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even.
inline __attribute__((always_inline)) uint16_t NearestBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded);
}

// Stochastic rounding: rounds up or down with probabilities such that the mean result is the value. `random`: any 32
// bits. Exactly representable values, among them 0, are unchanged.
inline __attribute__((always_inline)) uint16_t StochasticBfloat16(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + (random & 0xffffu)) >> 16;
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fc0u : is_finite ? rounded : bits >> 16);
}

inline __attribute__((always_inline)) float HalfToFloat(uint16_t bits) {
  return c10::detail::fp16_ieee_to_fp32_value(bits);
}
inline __attribute__((always_inline)) uint16_t NearestHalf(float value) {
  return c10::detail::fp16_ieee_from_fp32_value(value);
}

// fp16, as a bit pattern. Bit patterns without a type of their own are bf16.
struct HalfBits {
  uint16_t bits;
};

// 32 pseudo-random bits that depend only on (key, element).
inline __attribute__((always_inline)) uint32_t HashElement(uint32_t key, uint32_t element) {
  uint32_t x = element * 0x9e3779b1u ^ key;  // then the finalizer of MurmurHash3
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace trainyard
