// Whole clusters, simulated: every invariant over many seeds, seeds that once failed, and planted bugs that must be
// found.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/sim/shrink.h"

namespace trainyard::sim {
namespace {

constexpr uint64_t kSeeds = 300;
constexpr uint64_t kSeedsPerMutation = 150;

std::string Explain(const Scenario& scenario, const Result& result) {
  return absl::StrCat("repeat it: ./dev sim ", scenario.seed, "\n", result.violation->invariant, ": ",
                      result.violation->text, "\n", Describe(scenario));
}

TEST(Simulation, ManySeeds_EveryInvariantHolds) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Scenario scenario = DrawScenario(seed);

    Result result = World(scenario).Run();

    ASSERT_FALSE(result.violation.has_value()) << Explain(scenario, result);
  }
}

TEST(Simulation, SameSeed_SameRunEventByEvent) {
  for (uint64_t seed : {3, 17, 40}) {
    Result first = World(DrawScenario(seed)).Run();
    Result second = World(DrawScenario(seed)).Run();

    EXPECT_EQ(first.print, second.print) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
}

class PlantedBug : public testing::TestWithParam<int> {};

TEST_P(PlantedBug, IsFoundByItsInvariant) {
  const Mutation mutation = static_cast<Mutation>(GetParam());
  const std::vector<std::string> expected = absl::StrSplit(CaughtBy(mutation), ' ');
  std::string others;
  for (uint64_t seed = 1; seed <= kSeedsPerMutation; ++seed) {
    Result result = World(DrawScenario(seed), {.mutation = mutation, .trace = false, .check_every = 1}).Run();
    if (!result.violation.has_value()) continue;
    if (std::count(expected.begin(), expected.end(), result.violation->invariant) > 0) return;
    // A consequence that showed itself first.
    absl::StrAppend(&others, "\nseed ", seed, ": ", result.violation->invariant, ": ", result.violation->text);
  }
  ADD_FAILURE() << "'" << CaughtBy(mutation) << "' was not broken in " << kSeedsPerMutation << " seeds" << others;
}

std::string MutationName(const testing::TestParamInfo<int>& info) {
  std::string name = NameOf(static_cast<Mutation>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(EachOfThem, PlantedBug, testing::Range(1, static_cast<int>(Mutation::kLast) + 1),
                         MutationName);

TEST(Shrink, AFailingScenario_IsMadeSmaller_AndStillFails) {
  WorldOptions options{.mutation = Mutation::kStartTwice, .trace = false, .check_every = 1};
  uint64_t seed = 1;
  while (!World(DrawScenario(seed), options).Run().violation.has_value()) ++seed;

  Shrunk shrunk = Shrink(DrawScenario(seed), options);

  ASSERT_TRUE(shrunk.result.violation.has_value());
  EXPECT_EQ(shrunk.result.violation->invariant, invariant::kRankOnce);
  EXPECT_LE(shrunk.scenario.faults.size(), DrawScenario(seed).faults.size());
  EXPECT_LE(shrunk.scenario.jobs.size(), DrawScenario(seed).jobs.size());
  EXPECT_FALSE(shrunk.result.trace.empty());
}

}  // namespace
}  // namespace trainyard::sim
