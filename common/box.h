// Boxes: a range in each dimension of a row-major tensor. A rank of a divided model holds boxes of the whole tensors,
// and a checkpoint consists of flat ranges of boxes. Pure; thread-safe.
//
//   tensor [3, 6], box {start [0, 2], size [3, 3]}, elements [2, 7) of the box, in its own row-major order:
//
//     . . 0 1|2 .      2 is the end of a row; 3, 4 and 5 a whole row; 6 the beginning of a row
//     . .|3 4 5 .
//     . .|6|7 8 .
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace trainyard {

struct Box {
  std::vector<int64_t> start = {};
  std::vector<int64_t> size = {};
  auto operator<=>(const Box&) const = default;
};

// The box that is a whole tensor.
Box WholeBox(std::vector<int64_t> shape);
// REQUIRES: `box` is within a tensor of this shape.
bool IsWholeBox(const Box& box, const std::vector<int64_t>& shape);
// "" for a whole tensor, otherwise "[0:4,8:16]", in the notation of slices.
std::string BoxText(const Box& box, const std::vector<int64_t>& shape);

// The number of elements.
int64_t CountIn(const Box& box);
// Whether the box has as many dimensions as the tensor and is within it.
bool IsWithin(const Box& box, const std::vector<int64_t>& shape);
// Whether two boxes of one tensor share an element.
bool Intersect(const Box& a, const Box& b);

// The boxes that make up elements [first, first + count) of `box`, in row-major order. There are at most
// 2 x (dimensions - 1) + 1 of them. REQUIRES: the range is within the box.
std::vector<Box> BoxesOfRange(const Box& box, int64_t first, int64_t count);

// Calls `visit` for each run of elements [first, first + count) of `box` that are consecutive in a tensor of this
// shape, in order: `at` is the index of the run's first element in the tensor. Runs are as long as possible. Stops when
// `visit` returns false. REQUIRES: the box is within the tensor, the range within the box.
void ForEachRun(const std::vector<int64_t>& shape, const Box& box, int64_t first, int64_t count,
                absl::FunctionRef<bool(int64_t at, int64_t length)> visit);

// Whether any two of the boxes of one tensor share an element. Takes O(n log n) for the boxes of a grid. `num_visited`,
// if not null, is set to the number of times that a box was looked at.
bool AnyIntersect(std::vector<Box> boxes, int64_t* num_visited = nullptr);

}  // namespace trainyard
