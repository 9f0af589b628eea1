// The names of the rules of decisions and of the levels of notices.
#include "coordinator/policy/notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace trainyard {
namespace {

using testing::IsEmpty;
using testing::Not;

TEST(NoticeTest, EveryRuleHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int i = 1; i <= static_cast<int>(kLastDecisionRule); ++i) {
    const std::string name = RuleName(static_cast<DecisionRule>(i));
    EXPECT_THAT(name, Not(IsEmpty()));
    EXPECT_TRUE(names.insert(name).second) << name;
  }

  EXPECT_STREQ(RuleName(DecisionRule::kNone), "");
  EXPECT_STREQ(RuleName(DecisionRule::kGiveUp), "give_up");
  EXPECT_STREQ(RuleName(DecisionRule::kOperator), "operator");
}

TEST(NoticeTest, LevelsHaveTheirNamesOnTheWire) {
  EXPECT_STREQ(LevelName(NoticeLevel::kInfo), "info");
  EXPECT_STREQ(LevelName(NoticeLevel::kWarning), "warning");
  EXPECT_STREQ(LevelName(NoticeLevel::kError), "error");
}

}  // namespace
}  // namespace trainyard
