// Conversions of fp16 in vectors, compared with LibTorch's. The tests also run as on CPUs with fewer features
// (tests/CMakeLists.txt).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "worker/numerics/element_bits.h"

namespace trainyard {
namespace {

// Every fp16 number, and the numbers around the middle between each of them and its neighbour.
TEST(HalfLanes, ConvertEveryNumberAsLibTorchDoes) {
  for (uint32_t first = 0; first < 0x10000; first += kLanes) {
    HalfBits bits[kLanes], back[kLanes];
    float wide[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) bits[i].bits = static_cast<uint16_t>(first + static_cast<uint32_t>(i));

    StoreLanes(LoadLanes(bits), wide);

    for (int64_t i = 0; i < kLanes; ++i) {
      const float expected = HalfToFloat(bits[i].bits);
      EXPECT_TRUE(wide[i] == expected || (std::isnan(wide[i]) && std::isnan(expected)))
          << "the number with the bits " << bits[i].bits << " became " << wide[i];
    }
    for (const int32_t offset : {0, 0xfff, 0x1000, 0x1001, 0x800, 0x1fff}) {
      float near[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        near[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(wide[i]) + static_cast<uint32_t>(offset));
      }
      StoreLanes(LoadLanes(near), back);
      for (int64_t i = 0; i < kLanes; ++i) {
        const uint16_t expected = NearestHalf(near[i]);
        EXPECT_TRUE(back[i].bits == expected || std::isnan(near[i]))
            << near[i] << " became the number with the bits " << back[i].bits;
      }
    }
  }
}

}  // namespace
}  // namespace trainyard
