#include "worker/trainer/step_losses.h"

#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(StepLosses, ReturnsTheLossesOfEachStepInTheirOrder) {
  StepLosses losses(at::kCPU);
  EXPECT_THAT(losses.Await(), IsEmpty());

  losses.Begin();
  EXPECT_EQ(losses.Add(3, at::scalar_tensor(1.5, at::kFloat)), 1.5);
  losses.Add(1, at::scalar_tensor(0.25, at::kDouble));
  losses.End();
  EXPECT_THAT(losses.Await(), ElementsAre(Pair(3, 1.5), Pair(1, 0.25)));
  EXPECT_THAT(losses.Await(), IsEmpty()) << "each loss is counted once";

  losses.Begin();
  losses.Add(0, at::scalar_tensor(2, at::kFloat));
  losses.Begin();  // the step failed and is repeated
  losses.Add(0, at::scalar_tensor(4, at::kFloat));
  losses.End();
  EXPECT_THAT(losses.Await(), ElementsAre(Pair(0, 4)));
}

TEST(StepLosses, HasNoTimeOfADevice_OnACpu) {
  StepLosses losses(at::kCPU);
  losses.Begin();
  losses.End();
  losses.Await();
  EXPECT_FALSE(losses.device_seconds().has_value());
}

}  // namespace
}  // namespace trainyard
