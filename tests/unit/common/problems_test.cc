#include "common/problems.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

TEST(Problems, AreReportedWithPositions_InTheOrderOfTheFile) {
  Positions positions = {{"b", {.file = "f", .line = 9, .column = 2}}, {"a", {.file = "f", .line = 3, .column = 1}}};
  Problems problems;
  problems.AddError(positions, "b", "is wrong");
  problems.AddWarning(positions, "b", "is odd");
  problems.AddError(positions, "a.x", "is required");

  EXPECT_EQ(problems.ToStatus().message(), "f:3:1: a.x: is required\nf:9:2: b: is wrong");
  ASSERT_EQ(problems.Warnings().size(), 1u);
  EXPECT_EQ(problems.Warnings()[0].ToString(), "f:9:2: warning: b: is odd");
  EXPECT_EQ(problems.Warnings()[0].Message(), "b: is odd");
}

TEST(Problems, WarningsOnly_AreOk) {
  Problems problems;
  problems.AddWarning({}, "a", "is odd");

  EXPECT_TRUE(problems.ok());
  EXPECT_TRUE(problems.ToStatus().ok());
}

}  // namespace
}  // namespace trainyard
