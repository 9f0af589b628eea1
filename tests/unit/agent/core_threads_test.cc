// How the daemon's core chooses the number of threads of a trainer.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/unit/agent/core_driver.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

TEST(AgentCore, DesiredThreads_OverrideTheHostsShare) {
  CoreDriver driver;
  driver.Attach();
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_threads(3);

  driver.Handle(driver.State(1, {desired}));

  EXPECT_EQ(driver.Last<StartProcess>().at(0).threads, 3);
}

// The host has 2 slots and 8 cores.
TEST(AgentCore, RanksOwnTheCores_IfTheyUseAllSlotsAndHaveNoMoreThreadsThanCores) {
  const std::tuple<uint32_t, uint32_t, bool> cases[] = {{2, 4, true}, {2, 5, false}, {1, 1, false}};
  for (const auto& [local_ranks, threads, owns_cores] : cases) {
    CoreDriver driver;
    driver.Attach();
    v1::DesiredTrainer desired = Desired(Rank(0));
    desired.set_threads(threads);
    desired.set_local_world_size(local_ranks);

    driver.Handle(driver.State(1, {desired}));

    EXPECT_EQ(driver.Last<StartProcess>().at(0).owns_cores, owns_cores)
        << local_ranks << " ranks with " << threads << " threads each";
  }
}

TEST(AgentCore, RanksOwnNoCores_IfAnotherDaemonUsesTheMachine) {
  CoreDriver driver("", "", /*adopt_cluster=*/false, /*shares_machine=*/true);
  driver.Attach();
  v1::DesiredTrainer desired = Desired(Rank(0));
  desired.set_threads(4);
  desired.set_local_world_size(2);

  driver.Handle(driver.State(1, {desired}));

  EXPECT_FALSE(driver.Last<StartProcess>().at(0).owns_cores);
}

}  // namespace
}  // namespace trainyard::agent
