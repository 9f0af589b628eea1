// The hosts that push output wait for a slow reader, and never longer than necessary.
#include "coordinator/rpc/log_flow.h"

#include <gtest/gtest.h>

#include <deque>

namespace trainyard {
namespace {

constexpr size_t kFull = LogFlow::kLinesMax;

TEST(LogFlow, AHostWaits_UntilTheReaderHasTakenEnoughLines) {
  size_t waiting = kFull - 1;
  LogFlow flow([&] { return waiting; });
  int resumed = 0;
  const auto resume = [&] { ++resumed; };
  EXPECT_TRUE(flow.MayContinue(resume));

  waiting = kFull;
  EXPECT_FALSE(flow.MayContinue(resume));
  waiting = kFull / 2;
  flow.Continue();
  EXPECT_EQ(resumed, 0);
  waiting = kFull / 2 - 1;
  flow.Continue();
  flow.Continue();
  EXPECT_EQ(resumed, 1);
}

// The thread of a host may be interrupted between its look at the queue and the moment when it begins to wait.
TEST(LogFlow, AReaderThatTakesAllLinesJustBeforeAHostWaits_LetsItContinue) {
  std::deque<size_t> looks = {kFull, 0};
  LogFlow flow([&] {
    const size_t waiting = looks.front();
    if (looks.size() > 1) looks.pop_front();
    return waiting;
  });
  int resumed = 0;

  EXPECT_FALSE(flow.MayContinue([&] { ++resumed; }));

  EXPECT_EQ(resumed, 1) << "no line is left whose end of writing would let the host continue";
}

}  // namespace
}  // namespace trainyard
