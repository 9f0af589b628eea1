#include "common/ids.h"

#include <gtest/gtest.h>

#include <set>

namespace trainyard {
namespace {

TEST(RandomId, IsLowerCaseAndUnique) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    std::string id = RandomId(8);
    ASSERT_EQ(id.size(), 8u);
    for (char c : id) ASSERT_TRUE((c >= 'a' && c <= 'z') || (c >= '2' && c <= '7')) << id;
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(RandomIncarnation, IsNeverZero) {
  for (int i = 0; i < 100; ++i) EXPECT_NE(RandomIncarnation().value(), 0u);
}

TEST(Ids, OfDifferentKindsAreDifferentTypes) {
  EXPECT_FALSE((std::is_convertible_v<JobId, HostName>));
  EXPECT_FALSE((std::is_convertible_v<Generation, Incarnation>));
  EXPECT_LT(Generation(1), Generation(2));
  EXPECT_EQ(JobId("a"), JobId(std::string("a")));
}

}  // namespace
}  // namespace trainyard
