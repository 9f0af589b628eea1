// The size of a weight that is multiplied with the rows of a micro-batch.
#pragma once

#include <cstdint>

namespace trainyard {

struct ProductShape {
  int64_t rows = 0, in = 0, out = 0;
  int64_t count = 1;  // weights of this size
  bool operator==(const ProductShape&) const = default;
};

}  // namespace trainyard
