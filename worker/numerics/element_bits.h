// Addresses of tensor elements, typed as the loops of vector_loops.h take them.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "worker/numerics/vector_loops.h"

namespace trainyard {

TRAINYARD_INLINE const float* BitsOf(const float* elements) { return elements; }
TRAINYARD_INLINE const uint16_t* BitsOf(const c10::BFloat16* elements) {
  return reinterpret_cast<const uint16_t*>(elements);
}
TRAINYARD_INLINE const HalfBits* BitsOf(const c10::Half* elements) {
  return reinterpret_cast<const HalfBits*>(elements);
}
TRAINYARD_INLINE float* BitsOf(float* elements) { return elements; }
TRAINYARD_INLINE uint16_t* BitsOf(c10::BFloat16* elements) { return reinterpret_cast<uint16_t*>(elements); }
TRAINYARD_INLINE HalfBits* BitsOf(c10::Half* elements) { return reinterpret_cast<HalfBits*>(elements); }

TRAINYARD_INLINE float ToFloat(float value) { return value; }
TRAINYARD_INLINE float ToFloat(uint16_t bits) { return Bfloat16ToFloat(bits); }
TRAINYARD_INLINE float ToFloat(HalfBits value) { return HalfToFloat(value.bits); }
TRAINYARD_INLINE void StoreNearest(float value, float* to) { *to = value; }
TRAINYARD_INLINE void StoreNearest(float value, uint16_t* to) { *to = NearestBfloat16(value); }
TRAINYARD_INLINE void StoreNearest(float value, HalfBits* to) { to->bits = NearestHalf(value); }

// Converts `size` numbers to the type of `to`, rounding to the nearest.
template <typename From, typename To>
TRAINYARD_INLINE void ConvertLine(const From* from, To* to, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) StoreLanes(LoadLanes(from + i), to + i);
  for (; i < size; ++i) StoreNearest(ToFloat(from[i]), to + i);
}

}  // namespace trainyard
