// Loads and stores for loops over rows of any length, 16 elements at a time: the last vector of a row may have fewer
// elements; the other lanes are 0 and are not stored. The rules of numerics/vector_loops.h apply.
#pragma once

#include <algorithm>

#include "worker/numerics/vector_loops.h"

namespace trainyard {

TRAINYARD_INLINE int64_t LanesAt(int64_t i, int64_t columns) { return std::min(kLanes, columns - i); }

template <typename T>
TRAINYARD_INLINE Floats LoadUpTo(const T* from, int64_t size) {
  return size == kLanes ? LoadLanes(from) : LoadFirstLanes(from, size);
}
template <typename T>
TRAINYARD_INLINE void StoreUpTo(Floats lanes, T* to, int64_t size) {
  size == kLanes ? StoreLanes(lanes, to) : StoreFirstLanes(lanes, to, size);
}

// The sum of all lanes in four steps, by halves. Faster than SumAcrossLanes, whose order of additions differs.
TRAINYARD_INLINE float SumLanesByHalves(Floats lanes) {
  lanes += __builtin_shuffle(lanes, Ints{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  lanes += __builtin_shuffle(lanes, Ints{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  lanes += __builtin_shuffle(lanes, Ints{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return lanes[0] + lanes[1];
}

// The lanes as they are after a store to T and a load.
template <typename T>
TRAINYARD_INLINE Floats RoundedTo(Floats lanes) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return lanes;
  } else {
    T memory[kLanes];
    StoreLanes(lanes, memory);
    return LoadLanes(memory);
  }
}

}  // namespace trainyard
