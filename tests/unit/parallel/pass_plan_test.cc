#include "worker/parallel/pass_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/files.h"

namespace trainyard {
namespace {

int Count(const std::vector<UnitAction>& plan, UnitAct act) {
  return static_cast<int>(std::count_if(plan.begin(), plan.end(), [&](const UnitAction& a) { return a.act == act; }));
}

std::string Lines(const std::vector<UnitAction>& plan) {
  std::string lines;
  for (const UnitAction& action : plan) lines += ToString({action}) + "\n";
  return lines;
}

// Plans for three blocks and a root. docs/decisions/0003-data-parallel.md explains them.
struct GoldenCase {
  const char* name;
  bool with_backward;
  PassPlanOptions options;
};
class GoldenPlan : public testing::TestWithParam<GoldenCase> {};
INSTANTIATE_TEST_SUITE_P(Plans, GoldenPlan,
                         testing::Values(GoldenCase{"train", true, {}},
                                         GoldenCase{"train-inner", true, {.reduce = false}},
                                         GoldenCase{"train-without-overlap", true, {.overlap = false}},
                                         GoldenCase{"train-without-prefetch", true, {.prefetch_elements = 0}},
                                         GoldenCase{"train-kept-gathered", true, {.reshard_after_forward = false}},
                                         GoldenCase{"evaluate", false, {}}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(GoldenPlan, MatchesTheGoldenText) {
  const std::string path = std::string("tests/golden/pass_plan/") + GetParam().name + ".txt";
  const std::string plan = Lines(PlanPass({50, 100, 100, 100}, GetParam().with_backward, GetParam().options));
  absl::StatusOr<std::string> golden = ReadFile(path);
  ASSERT_TRUE(golden.ok()) << path << " should contain:\n" << plan;
  EXPECT_EQ(*golden, plan) << path;
}

TEST(PlanPass, GathersTheExpectedNumberOfTimes) {
  const std::vector<int64_t> units(1 + 5, 100);
  EXPECT_EQ(Count(PlanPass(units, true, {}), UnitAct::kGather), 10);
  EXPECT_EQ(Count(PlanPass(units, true, {.prefetch_elements = 0}), UnitAct::kGather), 11);
  EXPECT_EQ(Count(PlanPass(units, true, {.overlap = false}), UnitAct::kGather), 11);
  EXPECT_EQ(Count(PlanPass(units, true, {.reshard_after_forward = false}), UnitAct::kGather), 6);
  EXPECT_EQ(Count(PlanPass(units, false, {}), UnitAct::kGather), 6);
}

TEST(PlanPass, KeepsUnitsThatAreUsedAgainSoon) {
  const std::vector<int64_t> units(1 + 4, 100);
  // Between the forward and the backward of the last but one unit, the last unit is used twice: 200 elements.
  EXPECT_EQ(Count(PlanPass(units, true, {.reuse_elements = 199}), UnitAct::kGather), 8);
  EXPECT_EQ(Count(PlanPass(units, true, {.reuse_elements = 200}), UnitAct::kGather), 7);
  EXPECT_EQ(Count(PlanPass(units, true, {.reuse_elements = 200, .max_live_elements = 199}), UnitAct::kGather), 8);
}

TEST(PlanPass, PrefetchesWithinItsLimits) {
  auto live_at_first_block = [](const PassPlanOptions& options) {
    int live = 0;
    for (const UnitAction& action : PlanPass(std::vector<int64_t>(1 + 6, 100), true, options)) {
      if (action == UnitAction{UnitAct::kForward, 1}) break;
      live += action.act == UnitAct::kGather && action.unit > 0;
    }
    return live;
  };
  EXPECT_EQ(live_at_first_block({}), 2);
  EXPECT_EQ(live_at_first_block({.prefetch_elements = 300}), 4);
  EXPECT_EQ(live_at_first_block({.prefetch_elements = 300, .max_live_elements = 250}), 2);
  EXPECT_EQ(live_at_first_block({.prefetch_elements = 99}), 1);
}

TEST(PlanSlots, NeedsThreeSlotsAtAnyDepth) {
  for (int blocks : {1, 2, 3, 8, 30}) {
    const std::vector<int64_t> units(1 + blocks, 100);
    EXPECT_EQ(PlanSlots(PlanPass(units, true, {}), true), std::min(3, blocks + 1)) << blocks;
    EXPECT_LE(PlanSlots(PlanPass(units, true, {.reduce = false}), false), 2) << blocks;
    EXPECT_EQ(PlanSlots(PlanPass(units, true, {.overlap = false}), true), 2) << blocks;
    EXPECT_EQ(PlanSlots(PlanPass(units, true, {.reshard_after_forward = false}), true), blocks + 1) << blocks;
  }
}

// For any sizes and options: a unit computes only after its gather was waited for, no unit is gathered twice at the
// same time or stays gathered at the end, and every reduction is waited for. A failure prints the seed that reproduces
// it.
TEST(PlanPass, RandomPlans_AreValid) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> units(1 + random() % 7);
    for (int64_t& elements : units) elements = 1 + random() % 100;
    const bool with_backward = random() % 4 != 0;
    PassPlanOptions options{.overlap = random() % 2 == 0,
                            .reshard_after_forward = random() % 2 == 0,
                            .reduce = random() % 2 == 0,
                            .prefetch_elements = static_cast<int64_t>(random() % 300) - 1,
                            .reuse_elements = static_cast<int64_t>(random() % 300),
                            .max_live_elements = 1 + static_cast<int64_t>(random() % 400)};
    std::map<int, int> state;  // 1: gathering, 2: gathered
    std::map<int, int> reducing;
    std::vector<UnitAction> computed;
    for (const auto& [act, unit] : PlanPass(units, with_backward, options)) {
      if (act == UnitAct::kGather) {
        ASSERT_EQ(state[unit]++, 0) << "seed " << seed;
      } else if (act == UnitAct::kWaitGather) {
        ASSERT_EQ(state[unit]++, 1) << "seed " << seed;
      } else if (act == UnitAct::kFree) {
        ASSERT_EQ(state[unit], 2) << "seed " << seed;
        state[unit] = 0;
      } else if (act == UnitAct::kReduce) {
        ASSERT_EQ(computed.back(), (UnitAction{UnitAct::kBackward, unit})) << "seed " << seed;
        ++reducing[unit];
      } else if (act == UnitAct::kWaitReduce) {
        ASSERT_EQ(reducing[unit]--, 1) << "seed " << seed;
      } else {
        ASSERT_EQ(state[unit], 2) << "seed " << seed;
        ASSERT_EQ(state[0], 2) << "seed " << seed << ": the root must stay gathered";
        computed.push_back({act, unit});
      }
    }
    for (const auto& [unit, left] : state) ASSERT_EQ(left, 0) << "seed " << seed << " unit " << unit;
    for (const auto& [unit, left] : reducing) ASSERT_EQ(left, 0) << "seed " << seed << " unit " << unit;
    ASSERT_EQ(computed.size(), units.size() * (with_backward ? 2 : 1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trainyard
