// Boxes of tensors: ranges within them, and whether any two of many boxes share an element.
#include "common/box.h"

#include <gtest/gtest.h>

#include <random>

namespace trainyard {
namespace {

// The index in a tensor of each element of a box, in the box's order.
std::vector<int64_t> ElementsOf(const Box& box, const std::vector<int64_t>& shape) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < CountIn(box); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      index += (box.start[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= shape[d];
    }
    elements.push_back(index);
  }
  return elements;
}

struct Random {
  explicit Random(unsigned seed) : random(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); }
  std::vector<int64_t> Shape(int64_t side) {
    std::vector<int64_t> shape(static_cast<size_t>(Below(4)));
    for (int64_t& size : shape) size = 1 + Below(side);
    return shape;
  }
  Box BoxIn(const std::vector<int64_t>& shape) {
    Box box = WholeBox(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      box.start[d] = Below(shape[d]);
      box.size[d] = 1 + Below(shape[d] - box.start[d]);
    }
    return box;
  }
  std::mt19937 random;
};

TEST(Box, BoxesAndRunsOfAnyRange_ContainTheElementsOfTheRange) {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<int64_t> shape = random.Shape(5);
    const Box box = random.BoxIn(shape);
    const std::vector<int64_t> all = ElementsOf(box, shape);
    const int64_t first = random.Below(CountIn(box)), count = random.Below(CountIn(box) - first + 1);
    const std::vector<int64_t> expected(all.begin() + first, all.begin() + first + count);

    std::vector<int64_t> of_boxes, of_runs;
    const std::vector<Box> boxes = BoxesOfRange(box, first, count);
    for (const Box& each : boxes) {
      const std::vector<int64_t> elements = ElementsOf(each, shape);
      of_boxes.insert(of_boxes.end(), elements.begin(), elements.end());
    }
    int64_t previous_end = -1;
    ForEachRun(shape, box, first, count, [&](int64_t at, int64_t length) {
      EXPECT_NE(at, previous_end) << "two adjacent runs must be one run";
      previous_end = at + length;
      for (int64_t i = 0; i < length; ++i) of_runs.push_back(at + i);
      return true;
    });

    ASSERT_EQ(of_boxes, expected);
    ASSERT_EQ(of_runs, expected);
    ASSERT_LE(boxes.size(), shape.empty() ? 1 : 2 * shape.size() - 1);
  }
}

TEST(Box, ForEachRun_StopsWhenTheVisitorReturnsFalse) {
  int runs = 0;

  ForEachRun({4, 6}, {.start = {0, 2}, .size = {4, 3}}, 0, 12, [&](int64_t, int64_t) { return ++runs < 2; });

  EXPECT_EQ(runs, 2);
}

TEST(Box, TextOfABox_IsThatOfASlice) {
  EXPECT_EQ(BoxText(WholeBox({4, 6}), {4, 6}), "");
  EXPECT_EQ(BoxText({.start = {0, 2}, .size = {4, 3}}, {4, 6}), "[0:4,2:5]");
  EXPECT_EQ(BoxText(WholeBox({}), {}), "");
}

TEST(Box, ABoxOutsideOfTheTensor_IsNotWithinIt) {
  EXPECT_TRUE(IsWithin({.start = {4, 0}, .size = {0, 6}}, {4, 6})) << "an empty box may be at the end";
  EXPECT_FALSE(IsWithin({.start = {3, 0}, .size = {2, 6}}, {4, 6}));
  EXPECT_FALSE(IsWithin({.start = {-1, 0}, .size = {2, 6}}, {4, 6}));
  EXPECT_FALSE(IsWithin({.start = {0, 0}, .size = {-1, 6}}, {4, 6}));
  EXPECT_FALSE(IsWithin({.start = {0}, .size = {4}}, {4, 6}));
}

TEST(AnyIntersect, OfRandomBoxes_AgreesWithAComparisonOfAllPairs) {
  Random random(2);
  int found = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<int64_t> shape = random.Shape(12);
    std::vector<Box> boxes;
    for (int64_t n = random.Below(6); n >= 0; --n) {
      Box box = random.BoxIn(shape);
      for (int64_t& size : box.size) size = std::min<int64_t>(size, 1 + random.Below(4));
      boxes.push_back(std::move(box));
    }
    bool expected = false;
    for (size_t a = 0; a < boxes.size(); ++a) {
      for (size_t b = 0; b < a; ++b) expected |= Intersect(boxes[a], boxes[b]);
    }
    found += expected;

    ASSERT_EQ(AnyIntersect(boxes), expected);
  }
  EXPECT_GT(found, 500);
  EXPECT_LT(found, 4500);
}

// No straight line divides these boxes into two sets without crossing a box.
TEST(AnyIntersect, OfAPinwheel_IsFalse) {
  std::vector<Box> pinwheel = {{.start = {0, 0}, .size = {1, 2}},
                               {.start = {0, 2}, .size = {2, 1}},
                               {.start = {2, 1}, .size = {1, 2}},
                               {.start = {1, 0}, .size = {2, 1}},
                               {.start = {1, 1}, .size = {1, 1}}};
  EXPECT_FALSE(AnyIntersect(pinwheel));

  pinwheel.push_back(pinwheel.back());
  EXPECT_TRUE(AnyIntersect(pinwheel));
}

TEST(AnyIntersect, OfTenThousandBoxes_VisitsEachAtMostSixteenTimesOnAverage) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 10'000}, {10'000, 1}, {100, 100}}) {
    std::vector<Box> boxes;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) boxes.push_back({.start = {r * 3, c * 5}, .size = {3, 5}});
    }
    int64_t visited = 0;

    EXPECT_FALSE(AnyIntersect(boxes, &visited));

    EXPECT_LE(visited, 10'000 * 16) << "the cuts visit each box about log2(10,000) = 13.3 times";
    boxes.back() = boxes[1234];
    EXPECT_TRUE(AnyIntersect(boxes));
  }
}

}  // namespace
}  // namespace trainyard
