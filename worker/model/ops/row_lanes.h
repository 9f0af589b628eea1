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
