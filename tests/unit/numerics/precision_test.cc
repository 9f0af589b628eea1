#include "worker/numerics/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/numerics/loss_scaler.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

TEST(Precision, SixteenBitNames_UseFp32ForTheRest) {
  Precision bf16 = *ParsePrecision("bf16"), fp16 = *ParsePrecision("fp16");
  EXPECT_EQ(bf16, (Precision{.param = at::kBFloat16}));
  EXPECT_EQ(fp16, (Precision{.param = at::kHalf, .scaled = true}));
  EXPECT_TRUE(bf16.keeps_masters());
  EXPECT_FALSE(bf16.rounds_stochastically());
  EXPECT_FALSE(ParsePrecision("fp32")->keeps_masters());
  EXPECT_EQ(ParsePrecision("fp64")->state, at::kDouble);
}

TEST(Precision, Map_ReducesInTheTypeOfParam) {
  Precision precision = *ParsePrecision(PrecisionNames{.param = "bf16"});
  EXPECT_EQ(precision, (Precision{.param = at::kBFloat16, .reduce = at::kBFloat16}));
  EXPECT_EQ(ParsePrecision(PrecisionNames{.param = "bf16", .reduce = "fp32"})->reduce, at::kFloat);
  EXPECT_EQ(*ParsePrecision(PrecisionNames{.param = "fp64"}), *ParsePrecision("fp64"));
  EXPECT_EQ(*ParsePrecision(PrecisionNames{}), *ParsePrecision("fp32"));
  EXPECT_TRUE(ParsePrecision(PrecisionNames{.reduce = "fp16"})->scaled);
}

TEST(Precision, WithoutMasters_RoundsStochastically) {
  Precision precision = *ParsePrecision(PrecisionNames{.param = "bf16", .master = "bf16"});
  EXPECT_FALSE(precision.keeps_masters());
  EXPECT_TRUE(precision.rounds_stochastically());
}

TEST(Precision, ReportsAllInvalidCombinations) {
  auto refused = [](const PrecisionNames& names) { return ParsePrecision(names).status(); };
  EXPECT_THAT(refused({.param = "fp8"}).message(), HasSubstr("'fp8' is not a precision"));
  absl::Status two = refused({.param = "fp16", .master = "fp16", .state = "fp16"});
  EXPECT_TRUE(absl::IsInvalidArgument(two));
  EXPECT_THAT(two.message(), HasSubstr("master fp16"));
  EXPECT_THAT(two.message(), HasSubstr("state fp16"));
  EXPECT_THAT(refused({.param = "fp64", .reduce = "fp32"}).message(), HasSubstr("fp64 must be used for all"));
  EXPECT_THAT(refused({.param = "fp16", .master = "bf16"}).message(), HasSubstr("fewer digits"));
  EXPECT_THAT(refused({.param = "bf16", .reduce = "fp16"}).message(), HasSubstr("reduce fp16"));
}

TEST(Precision, ToString_IsShort) {
  EXPECT_EQ(ParsePrecision("fp32")->ToString(), "fp32");
  EXPECT_EQ(ParsePrecision("bf16")->ToString(), "bf16 (reduce fp32, output fp32, master fp32, state fp32)");
}

TEST(LossScale, DoublesAfterAWindowOfGoodSteps) {
  LossScaleConfig config{.initial = 8, .window = 3};
  LossScale scale = InitialLossScale(config);
  for (int i = 0; i < 2; ++i) scale = NextLossScale(scale, config, false);
  EXPECT_EQ(scale.scale, 8);
  scale = NextLossScale(scale, config, false);
  EXPECT_EQ(scale, (LossScale{.scale = 16, .good_steps = 0, .hysteresis_left = 2}));
}

TEST(LossScale, Overflow_RestartsTheWindow) {
  LossScaleConfig config{.initial = 8, .window = 3, .hysteresis = 1};
  LossScale scale = InitialLossScale(config);
  for (bool overflow : {false, false, true, false, false}) scale = NextLossScale(scale, config, overflow);
  EXPECT_EQ(scale, (LossScale{.scale = 4, .good_steps = 2, .hysteresis_left = 0}));
}

TEST(LossScale, SecondAndEachLaterOverflow_HalvesTheScale) {
  LossScaleConfig config{.initial = 8, .window = 100, .hysteresis = 2};
  LossScale scale = InitialLossScale(config);
  scale = NextLossScale(scale, config, true);
  EXPECT_EQ(scale.scale, 8);
  scale = NextLossScale(scale, config, false);  // a good step does not restore the hysteresis
  scale = NextLossScale(scale, config, true);
  EXPECT_EQ(scale.scale, 4);
  scale = NextLossScale(scale, config, true);
  EXPECT_EQ(scale.scale, 2);
  for (int i = 0; i < 10; ++i) scale = NextLossScale(scale, config, true);
  EXPECT_EQ(scale.scale, 1) << "must not fall below min";
}

TEST(LossScale, StaticScale_NeverChanges) {
  LossScaleConfig config{.initial = 128, .window = 1, .dynamic = false};
  LossScale scale = InitialLossScale(config);
  for (bool overflow : {false, true, true, false}) scale = NextLossScale(scale, config, overflow);
  EXPECT_EQ(scale, InitialLossScale(config));
}

TEST(LossScale, OfACheckpoint_IsMadeToFitTheSettingsOfTheJob) {
  const LossScale saved{.scale = 2, .good_steps = 7, .hysteresis_left = 5};
  const LossScaleConfig config{.initial = 64, .window = 3, .hysteresis = 2, .min = 16};

  const LossScale fitting = FitLossScale(saved, config);

  EXPECT_EQ(fitting, (LossScale{.scale = 16, .good_steps = 7, .hysteresis_left = 2}));
  EXPECT_EQ(FitLossScale(fitting, config), fitting);
  EXPECT_EQ(NextLossScale(NextLossScale(fitting, config, true), config, true).scale, 16)
      << "an overflow must not raise the scale";
}

TEST(LossSeed, DividesByThePowerOfTwoThatCoversTheTokens) {
  EXPECT_EQ(LossSeed(65536, 1), 65536);
  EXPECT_EQ(LossSeed(65536, 2), 32768);
  EXPECT_EQ(LossSeed(65536, 1024), 64);
  EXPECT_EQ(LossSeed(65536, 1025), 32);
}

}  // namespace
}  // namespace trainyard
