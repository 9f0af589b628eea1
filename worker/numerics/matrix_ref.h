// A matrix in memory that something else owns.
#pragma once

#include <cstdint>

namespace trainyard {

template <typename T>
struct MatrixRef {
  const T* data;
  int64_t row;              // elements in memory from one row to the next
  bool transposed = false;  // the memory holds the transpose
};

}  // namespace trainyard
