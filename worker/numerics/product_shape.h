// The size of a weight that is multiplied with the rows of a micro-batch.
#pragma once

#include <cstdint>

namespace trainyard {

struct ProductShape {
  int64_t rows = 0, in = 0, out = 0;
  int64_t count = 1;  // weights of this size
  bool operator==(const ProductShape&) const = default;
};

// The floating-point operations of the three products of one weight: forward and both gradients.
constexpr double OperationsOfForms(const ProductShape& shape) {
  return 3 * 2 * static_cast<double>(shape.rows) * static_cast<double>(shape.in) * static_cast<double>(shape.out);
}

}  // namespace trainyard
