#include "common/phase.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

TEST(PhaseTest, EveryNameParsesToItsPhase) {
  for (int i = 0; i <= static_cast<int>(Phase::kEnded); ++i) {
    const auto phase = static_cast<Phase>(i);
    EXPECT_EQ(ParsePhase(PhaseName(phase)), phase) << PhaseName(phase);
  }
}

TEST(PhaseTest, AnUnknownPhaseKeepsItsTextAndEqualsNoPhase) {
  const ReportedPhase phase("compile");

  EXPECT_EQ(phase.name(), "compile");
  EXPECT_FALSE(phase == Phase::kTrain);
  EXPECT_EQ(ParsePhase("compile"), std::nullopt);
}

}  // namespace
}  // namespace trainyard
