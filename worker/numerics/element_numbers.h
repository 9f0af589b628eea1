// The numbers of elements within a parameter, by which stochastic rounding draws its random bits. A rank may hold only
// a box of a parameter. Its elements then have the numbers that they have in the whole parameter, in row-major order,
// so that every layout rounds in the same way. Pure.
//
//   parameter [2, 6], box of columns 2 to 4: base 2, length 3, stride 6
//
//     0 1 [ 2  3  4]  5
//     6 7 [ 8  9 10] 11     element 4 of the box has the number 2 + 4 / 3 * 6 + 4 % 3 = 9
#pragma once

#include <algorithm>
#include <cstdint>

namespace trainyard {

// A box consists of runs of elements that are consecutive in the parameter. The default is a whole parameter.
struct ElementRuns {
  int64_t base = 0;            // the number of the box's first element
  int64_t length = INT64_MAX;  // elements of a run; at least 1
  int64_t stride = 0;          // the difference between the numbers of the first elements of two successive runs

  bool operator==(const ElementRuns&) const = default;
};

struct NumberedElements {
  int64_t number = 0;  // of the first element
  int64_t count = 0;   // elements with consecutive numbers
};

// Returns the numbers of elements [first, first + count) of the box, where count is at most `limit`. The high 32 bits
// of these numbers are equal. REQUIRES: first >= 0, limit >= 1.
inline __attribute__((always_inline)) NumberedElements NumbersFrom(const ElementRuns& runs, int64_t first,
                                                                   int64_t limit) {
  constexpr int64_t kPeriod = int64_t{1} << 32;
  const int64_t within = first % runs.length;
  const int64_t number = runs.base + first / runs.length * runs.stride + within;
  return {.number = number, .count = std::min(limit, std::min(runs.length - within, kPeriod - number % kPeriod))};
}

}  // namespace trainyard
