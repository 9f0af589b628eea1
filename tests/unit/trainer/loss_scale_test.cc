// How a single rank in fp16 lowers the loss scale, and when it gives up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/run.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class LossScaleTest : public SmallRunTest {
 protected:
  StartOrder Fp16Order(double initial_scale) {
    StartOrder order = Order("run", 60);
    order.config.precision.param = order.config.precision.reduce = "fp16";
    order.config.loss_scale.initial = initial_scale;
    return order;
  }
};

TEST_F(LossScaleTest, LossScaleThatIsFarTooHigh_IsLoweredUntilItFits) {
  FakeLink link;
  StartOrder order = Fp16Order(std::ldexp(1.0, 40));
  order.config.model.dropout = 0;

  EXPECT_EQ(Run(order, link), kExitDone) << log_.str();

  ASSERT_THAT(link.steps(), SizeIs(60));
  EXPECT_TRUE(link.steps()[15].skipped)
      << "lowering the scale takes more steps than train.nonfinite_limit, which does not count them";
  EXPECT_FALSE(link.steps()[59].skipped);
}

TEST_F(LossScaleTest, OverflowsThatTheHysteresisAbsorbs_DoNotEndTheJob) {
  FakeLink link;
  StartOrder order = Fp16Order(std::ldexp(1.0, 40));
  order.config.model.dropout = 0;
  order.config.loss_scale.hysteresis = 15;  // more than train.nonfinite_limit

  EXPECT_EQ(Run(order, link), kExitDone) << log_.str();

  ASSERT_THAT(link.steps(), SizeIs(60));
  EXPECT_EQ(link.steps()[14].loss_scale, order.config.loss_scale.initial);
  EXPECT_LT(link.steps()[15].loss_scale, order.config.loss_scale.initial);
  EXPECT_FALSE(link.steps()[59].skipped);
}

// The first update makes the weights infinite, so that no loss is finite at any scale.
TEST_F(LossScaleTest, LossesThatAreNotFiniteAtTheSmallestScale_EndTheJob) {
  FakeLink link;
  StartOrder order = Fp16Order(8);
  order.config.optimizer.lr = 1e6;
  order.config.optimizer.clip_norm = 0;
  order.config.loss_scale.hysteresis = 5;
  order.config.nonfinite_limit = 3;

  EXPECT_EQ(Run(order, link), kExitRefused) << log_.str();

  ASSERT_THAT(link.FactsOf<RefusedFact>(), SizeIs(1));
  EXPECT_THAT(link.FactsOf<RefusedFact>()[0].message, HasSubstr("train.nonfinite_limit: 3 steps in a row, "));
}

}  // namespace
}  // namespace trainyard
