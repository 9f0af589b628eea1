// Which namespaces are listed, and what is counted for each.
#include "coordinator/handlers/queue_totals.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

TEST(QueueTotals, PastPreemptions_DoNotKeepANamespaceInTheList) {
  State state;
  state.options.queue.namespaces["listed"].max_running = 1;
  state.unfinished["research"] = 1;
  state.preemptions = {{"ended", 5}, {"listed", 3}, {"research", 2}};

  const std::vector<PoolTotals> pools = CountPools(state, absl::UnixEpoch());

  ASSERT_EQ(pools.size(), 2u) << "no job of the namespace that has ended is left";
  EXPECT_EQ(pools[0].pool, "listed");
  EXPECT_EQ(pools[0].preemptions, 3u);
  EXPECT_EQ(pools[1].pool, "research");
  EXPECT_EQ(pools[1].preemptions, 2u);
}

TEST(QueueTotals, NamespacesThatShareTheirLimits_AreOne) {
  State state;
  state.options.queue.namespaces[kOtherNamespaces].max_running = 1;
  state.preemptions = {{"ended", 5}, {"research", 2}};

  const std::vector<PoolTotals> pools = CountPools(state, absl::UnixEpoch());

  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0].pool, kOtherNamespaces);
  EXPECT_EQ(pools[0].preemptions, 7u);
}

}  // namespace
}  // namespace trainyard
