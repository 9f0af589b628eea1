#include "worker/parallel/stream_waits.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

TEST(StreamWaits, MeasureNothing_OnACpu) {
  StreamWaits waits(c10::Device(c10::kCPU));

  waits.Begin();
  waits.BeforeWait();
  waits.AfterWait();
  waits.End();

  EXPECT_EQ(waits.Seconds(), 0);
}

}  // namespace
}  // namespace trainyard
