#include "planner/dimensions.h"

#include <gtest/gtest.h>

namespace trainyard::planner {
namespace {

// The two examples of FlexFlow's description.
TEST(SplitSamples, OfTenSequences_GivesEachOfTwoDevicesFive) {
  EXPECT_EQ(SplitSamples({10, 512}, 2), (BatchShape{5, 2, 512}));
  EXPECT_EQ(ShapeText(SplitSamples({10, 512}, 2)), "5 x 2 x 512");
}

TEST(SplitAttributes, OfTenSequences_GivesEachOfTwoDevicesHalfOfTheLength) {
  EXPECT_EQ(SplitAttributes({10, 512}, 2), (BatchShape{10, 2, 256}));
  EXPECT_EQ(ShapeText(SplitAttributes({10, 512}, 2)), "10 x 2 x 256");
}

TEST(DimensionsOf, ALayout_NamesWhatItDivides) {
  Layout layout;
  layout.ranks = 64;
  layout.stages = 2;
  layout.tensor = 4;
  layout.data = v1::DATA_PARALLEL_ZERO1;
  EXPECT_EQ(DimensionsText(DimensionsOf(layout)), "sample 8, attribute 1, parameter 8");
  layout.sequence = true;
  EXPECT_EQ(DimensionsText(DimensionsOf(layout)), "sample 8, attribute 4, parameter 8");
  layout = {};
  layout.ranks = 16;
  layout.data = v1::DATA_PARALLEL_FSDP;
  EXPECT_EQ(DimensionsText(DimensionsOf(layout)),
            "sample 16, attribute 1, parameter 1 (stored parameters in 16 shards)");
}

}  // namespace
}  // namespace trainyard::planner
