// Conversions between fp32 and 16-bit numbers, which are given as bit patterns. They are always inlined, so that the
// compiler can vectorise loops that call them.
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

// Stochastic rounding: rounds up or down with probabilities such that the mean of the results is `value`. `random`: 32
// random bits, of which 16 are used. Values that bf16 can represent, among them 0, do not change.
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

// The bit pattern of an fp16 number. The bit pattern of a bf16 number is a plain uint16_t.
struct HalfBits {
  uint16_t bits;
};

// 32 pseudo-random bits that depend only on (key, element).
inline __attribute__((always_inline)) uint32_t HashElement(uint32_t key, uint32_t element) {
  uint32_t x = element * 0x9e3779b1u ^ key;
  // The finalizer of MurmurHash3.
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace trainyard
