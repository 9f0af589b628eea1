#include "common/box.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

// The row-major index of the element at `position` in a tensor of this shape.
int64_t IndexIn(const std::vector<int64_t>& shape, const std::vector<int64_t>& position) {
  int64_t index = 0;
  for (size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + position[d];
  return index;
}

// Adds the boxes that make up elements [first, first + count) of one part of `of`: the part whose indices in the outer
// dimensions are `at`. In the next dimension such a range consists of the end of a row, whole rows, and the beginning
// of a row; each of the three may be missing. The function calls itself for the end and the beginning.
void AddBoxes(const Box& of, std::vector<int64_t> at, int64_t first, int64_t count, std::vector<Box>& boxes) {
  if (count == 0) return;
  const size_t d = at.size(), dimensions = of.size.size();
  auto add = [&](std::vector<int64_t> start, std::vector<int64_t> size) {
    for (size_t i = 0; i < dimensions; ++i) start[i] += of.start[i];
    boxes.push_back({.start = std::move(start), .size = std::move(size)});
  };
  if (d == dimensions) return add(at, std::vector<int64_t>(d, 1));
  int64_t row = 1;
  for (size_t i = d + 1; i < dimensions; ++i) row *= of.size[i];
  auto part = [&](int64_t index, int64_t from, int64_t number) {
    std::vector<int64_t> inner = at;
    inner.push_back(index);
    AddBoxes(of, std::move(inner), from, number, boxes);
  };
  if (first % row != 0) {
    const int64_t head = std::min(count, row - first % row);
    part(first / row, first % row, head);
    first += head;
    count -= head;
  }
  if (const int64_t rows = count / row; rows > 0) {
    std::vector<int64_t> start = at, size(d, 1);
    start.push_back(first / row);
    start.resize(dimensions, 0);
    size.push_back(rows);
    size.insert(size.end(), of.size.begin() + static_cast<long>(d) + 1, of.size.end());
    add(std::move(start), std::move(size));
    first += rows * row;
    count -= rows * row;
  }
  if (count > 0) part(first / row, 0, count);
}

int64_t EndOf(const Box& box, size_t dimension) { return box.start[dimension] + box.size[dimension]; }

// A plane that divides boxes into two sets: the boxes that begin before it in this dimension, and those that end after
// it. A box that the plane cuts is in both sets.
struct Cut {
  size_t dimension = 0;
  int64_t at = 0;
  size_t larger_side = 0;  // the number of boxes in the larger set
};

// The plane whose larger set has the fewest boxes.
Cut BestCut(const std::vector<Box>& boxes) {
  Cut best{.larger_side = boxes.size()};
  for (size_t d = 0; d < boxes[0].size.size(); ++d) {
    std::vector<int64_t> starts, ends;
    for (const Box& box : boxes) {
      starts.push_back(box.start[d]);
      ends.push_back(EndOf(box, d));
    }
    std::sort(starts.begin(), starts.end());
    std::sort(ends.begin(), ends.end());
    for (size_t i = 0; i < ends.size(); ++i) {
      if (i > 0 && ends[i] == ends[i - 1]) continue;
      const auto before = std::lower_bound(starts.begin(), starts.end(), ends[i]) - starts.begin();
      const auto after = ends.end() - std::upper_bound(ends.begin(), ends.end(), ends[i]);
      const size_t larger = static_cast<size_t>(std::max(before, after));
      if (larger < best.larger_side) best = {.dimension = d, .at = ends[i], .larger_side = larger};
    }
  }
  return best;
}

}  // namespace

Box WholeBox(std::vector<int64_t> shape) {
  return {.start = std::vector<int64_t>(shape.size(), 0), .size = std::move(shape)};
}

bool IsWholeBox(const Box& box, const std::vector<int64_t>& shape) {
  return box.size == shape;  // a box of this size within the tensor starts where the tensor starts
}

std::string BoxText(const Box& box, const std::vector<int64_t>& shape) {
  if (IsWholeBox(box, shape)) return "";
  std::string text = "[";
  for (size_t d = 0; d < box.size.size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ",", box.start[d], ":", EndOf(box, d));
  }
  return text + "]";
}

int64_t CountIn(const Box& box) {
  int64_t count = 1;
  for (const int64_t side : box.size) count *= side;
  return count;
}

bool IsWithin(const Box& box, const std::vector<int64_t>& shape) {
  if (box.start.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.start[d] < 0 || box.size[d] < 0 || box.start[d] > shape[d] || box.size[d] > shape[d] - box.start[d]) {
      return false;
    }
  }
  return true;
}

bool Intersect(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    if (std::max(a.start[d], b.start[d]) >= std::min(EndOf(a, d), EndOf(b, d))) return false;
  }
  return true;
}

std::vector<Box> BoxesOfRange(const Box& box, int64_t first, int64_t count) {
  std::vector<Box> boxes;
  AddBoxes(box, {}, first, count, boxes);
  return boxes;
}

void ForEachRun(const std::vector<int64_t>& shape, const Box& box, int64_t first, int64_t count,
                absl::FunctionRef<bool(int64_t at, int64_t length)> visit) {
  // The box covers dimensions [inner, end) of the tensor completely, so its elements with equal indices in the
  // dimensions before inner - 1 are consecutive in the tensor.
  size_t inner = shape.size();
  while (inner > 0 && box.size[inner - 1] == shape[inner - 1]) --inner;
  int64_t run = 1;
  for (size_t d = inner == 0 ? 0 : inner - 1; d < shape.size(); ++d) run *= box.size[d];
  for (int64_t done = 0; done < count;) {
    int64_t rest = first + done;
    const int64_t length = std::min(count - done, run - rest % run);
    std::vector<int64_t> position(shape.size());
    for (size_t d = shape.size(); d-- > 0;) {
      position[d] = box.start[d] + rest % box.size[d];
      rest /= box.size[d];
    }
    if (!visit(IndexIn(shape, position), length)) return;
    done += length;
  }
}

// Between two disjoint boxes there is a plane that has only one of them on each side. So if every plane has all boxes
// on one of its sides, every two boxes intersect.
bool AnyIntersect(std::vector<Box> boxes, int64_t* num_visited) {
  int64_t visited = 0;
  std::erase_if(boxes, [](const Box& box) { return CountIn(box) == 0; });
  std::vector<std::vector<Box>> sets;
  sets.push_back(std::move(boxes));
  bool found = false;
  while (!sets.empty()) {
    const std::vector<Box> set = std::move(sets.back());
    sets.pop_back();
    if (set.size() < 2) continue;
    visited += static_cast<int64_t>(set.size());
    const Cut cut = BestCut(set);
    found = cut.larger_side == set.size();
    if (found) break;
    std::vector<Box> below, above;
    for (const Box& box : set) {
      if (box.start[cut.dimension] < cut.at) below.push_back(box);
      if (EndOf(box, cut.dimension) > cut.at) above.push_back(box);
    }
    sets.push_back(std::move(below));
    sets.push_back(std::move(above));
  }
  if (num_visited != nullptr) *num_visited = visited;
  return found;
}

}  // namespace trainyard
